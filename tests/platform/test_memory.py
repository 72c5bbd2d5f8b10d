"""What the process hands back of its memory."""

import ctypes
import threading
from pathlib import Path

import pytest

from thalweg.platform.memory import _library, hand_back_own_heap

MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(_library() is None, reason="the allocator is not glibc's, or left alone")
def test_a_thread_hands_back_what_it_freed():
    library, seen = _library(), []
    pieces = (ctypes.c_void_p * (8 * MIB // 2000))()  # here: in the thread's heap it would be last

    def work():
        for number in range(len(pieces)):
            pieces[number] = library.malloc(2000)
            ctypes.memset(pieces[number], 1, 2000)
        for piece in pieces:
            library.free(piece)
        seen.append(resident())
        hand_back_own_heap()
        seen.append(resident())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen[0] - seen[1] > 6 * MIB
