"""Locks in the child of a fork."""

import os
import threading

import pytest

from thalweg.platform.forks import freed_after_fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_lock_held_by_another_thread_is_released_in_the_child(make):
    lock, held, done = freed_after_fork(make()), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    done.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0
