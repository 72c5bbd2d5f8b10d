"""Memory that the process returns to the system."""

import subprocess
import sys

import pytest

from thalweg.platform.memory import _mallopt

# A process of its own: heaps of threads that ended before are given to new ones, with what is left
# in them. The pieces are noted, and memory is looked at, outside of the thread whose heap it is.
PROGRAM = """
import ctypes, threading
from thalweg.platform.memory import trim_thread_heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def work():
    for number in range(len(pieces)):
        pieces[number] = library.malloc(2000)
        ctypes.memset(pieces[number], 1, 2000)
    for piece in pieces:
        library.free(piece)
    meeting.wait()
    meeting.wait()
    trim_thread_heap()
    meeting.wait()

library, pieces, meeting = ctypes.CDLL(None), (ctypes.c_void_p * 4000)(), threading.Barrier(2)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
threading.Thread(target=work).start()
meeting.wait()
before = resident()
meeting.wait()
meeting.wait()
print(before - resident())
"""


@pytest.mark.skipif(_mallopt() is None, reason="the allocator is not glibc's, or left alone")
def test_a_thread_returns_freed_memory():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 6 << 20
