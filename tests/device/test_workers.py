"""The worker threads of a process."""

import os
import threading
from queue import SimpleQueue

import numpy as np
import pytest

from thalweg.device import workers


def test_a_task_runs_on_a_thread_that_does_not_outlive_the_process() -> None:
    done, found = threading.Event(), list[tuple[bool, str]]()

    def task() -> None:
        found.append((threading.current_thread().daemon, np.geterr()["divide"]))
        done.set()

    workers.start(task)
    assert done.wait(60)
    assert found == [(True, "ignore")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_the_child_of_a_fork_gives_no_task_to_a_thread_of_its_parent() -> None:
    idle: SimpleQueue[workers.Task] = SimpleQueue()
    workers._idle.append(idle)
    child = os.fork()
    if not child:
        done = threading.Event()
        workers.start(done.set)
        os._exit(0 if done.wait(60) else 1)
    workers._idle.remove(idle)
    assert os.waitpid(child, 0)[1] == 0
