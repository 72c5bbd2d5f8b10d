"""The recursion limit: the last thread to leave restores it."""

from __future__ import annotations

import sys
import threading

from thalweg.platform.depth import deep_calls


def test_concurrent_threads_restore_the_limit() -> None:
    limit = sys.getrecursionlimit()

    def come_and_go() -> None:
        for _ in range(2000):
            with deep_calls():
                pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sys.getrecursionlimit() == limit
