"""One of 5 workers is 10 times slower than the others: who waits for it?

Writes the table of docs/many_workers.md and docs/images/stragglers.png. A step's work is a pause:
five workers need no five cores. The rest, parameter server and all, is real. `--quick` is for
development: short runs, and the files are left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from driver import LOG, addresses

import thalweg as tf

ROOT = Path(__file__).parents[2]
PAGE, PLOT = ROOT / "docs/many_workers.md", ROOT / "docs/images/stragglers.png"
BEGIN, END = "<!-- make stragglers writes from here -->\n", "<!-- to here -->\n"
SERVER = "/job:ps/task:0"
WORKERS, SLOW, SLOWNESS = 5, 4, 10
PAUSE, MAX_DELAY = 0.05, 8
SECONDS, QUICK_SECONDS = 15.0, 8.0


TEXT = """\
## Stragglers

`make stragglers` trains with five workers on a parameter server, all processes of their own. A step
takes them 50 ms; one of them needs ten times as long. Who waits for it depends on the program:

{table}
![Steps of the fastest and of the slow worker over time](images/stragglers.png)

Synchronous steps take as long as the slowest worker. With one backup the update waits for the first
four of five gradients only; the first row is a run without a slow worker. A bounded delay of τ = 8
lets the others run until they are exactly eight steps ahead; from then on the slow worker sets the
pace. Without synchronisation nobody waits. *Largest lead*: by how many steps a worker was ahead of
the last at most.

The paper of TensorFlow (OSDI 2016) shows the same effect on 50 workers that train Inception-v3 and
whose step times vary by themselves:

| backup workers | median step |
|---|---|
| 3 | the largest gain for each machine, 9.5 % |
| 4 | the shortest, 1.93 s |
| 5 | longer again |

"""


class Mode(NamedTuple):
    """How the workers are kept together."""

    title: str
    to_aggregate: int = 0  # gradients of an update; 0 where each is applied as it comes
    max_delay: int | None = None
    has_straggler: bool = True


MODES = {
    "lone": Mode("synchronous, lone", WORKERS, has_straggler=False),
    "sync": Mode("synchronous", WORKERS),
    "backup": Mode(f"synchronous, first {WORKERS - 1} of {WORKERS}", WORKERS - 1),
    "bounded": Mode(f"bounded delay, τ = {MAX_DELAY}", max_delay=MAX_DELAY),
    "async": Mode("asynchronous"),
}


# A worker


def train_op(mode: Mode, index: int) -> tuple[Any, Any]:
    """What trains, and its hook."""
    is_chief = index == 0
    with tf.device(tf.train.replica_device_setter(1, worker_device=f"/job:worker/task:{index}")):
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        loss = tf.square(weight - 1.0)
        step = tf.train.get_or_create_global_step()
        optimizer: Any = tf.train.GradientDescentOptimizer(0.01)
        if mode.to_aggregate:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, mode.to_aggregate, WORKERS)
            train = optimizer.minimize(loss, global_step=step)
            return train, optimizer.make_session_run_hook(is_chief)
        train = optimizer.minimize(loss, global_step=step)
    if mode.max_delay is None:
        return train, tf.train.SessionRunHook()
    delay = tf.train.BoundedDelay(mode.max_delay, WORKERS, index, SERVER)
    return delay.after(train), delay.make_session_run_hook(is_chief)


def begun_step(index: int) -> tuple[Any, Any]:
    """Counts the steps that each worker began: how far this one is ahead of the last, and a node
    that counts one more."""
    with tf.device(SERVER):
        zeros = tf.zeros_initializer()
        counts = [tf.get_variable(f"count_{i}", [], tf.int32, zeros) for i in range(WORKERS)]
        known = [tf.identity(count) for count in counts]
        ahead = known[index] - tf.reduce_min(tf.stack(known))
        with tf.control_dependencies([ahead]):
            return ahead, tf.assign_add(counts[index], 1).op


def work(mode: Mode, index: int, session: Any, nodes: Any, log: list[tuple[float, int]]) -> None:
    """Make steps for ever; note when each ended, and how far ahead it was when it began."""
    pause = PAUSE * (SLOWNESS if mode.has_straggler and index == SLOW else 1)
    (ahead, begun), train = nodes
    while True:
        lead, _ = session.run([ahead, begun])
        time.sleep(pause)
        session.run(train)
        log.append((time.monotonic(), int(lead)))


def run_task(name: str, jobs: dict[str, list[str]], job: str, index: int, seconds: float) -> None:
    server = tf.train.Server(tf.train.ClusterSpec(jobs), job_name=job, task_index=index)
    if job == "ps":
        server.join()
    train, hook = train_op(MODES[name], index)
    nodes = begun_step(index), train
    config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
    session = tf.train.MonitoredTrainingSession(
        server.target, index == 0, hooks=[hook], config=config
    )
    log = list[tuple[float, int]]()
    arguments = (MODES[name], index, session, nodes, log)
    threading.Thread(target=work, args=arguments, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()  # all are ready
    time.sleep(seconds)
    print(json.dumps(log), flush=True)
    os._exit(0)  # its thread may wait for others that have ended


# All of them


class Run(NamedTuple):
    """When each worker ended its steps, how many it had made before, and the largest lead."""

    times: list[np.ndarray[Any, Any]]
    earlier: list[int]
    lead: int

    def rate(self, worker: int) -> float:
        """Steps a second."""
        times = self.times[worker]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def run(name: str, seconds: float) -> Run:
    """Start all tasks, the chief before other workers, and collect what the workers say."""
    jobs = {"ps": addresses(1), "worker": addresses(WORKERS)}
    tasks = [start(name, jobs, "ps", 0, seconds)]
    try:
        tasks.append(chief := start(name, jobs, "worker", 0, seconds))
        wait(chief)
        others = [start(name, jobs, "worker", i, seconds) for i in range(1, WORKERS)]
        tasks += others
        for worker in others:
            wait(worker)
        for worker in tasks[1:]:
            print("go", file=worker.stdin, flush=True)
        logs = [json.loads(worker.stdout.readline()) for worker in tasks[1:]]
    finally:
        for task in tasks:
            task.kill()
            task.communicate()
    return collected(logs)


def start(name: str, jobs: dict[str, list[str]], job: str, index: int, seconds: float) -> Any:
    command = [sys.executable, __file__, json.dumps([name, jobs, job, index, seconds])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with LOG.open("a") as log:
        return subprocess.Popen(command, stderr=log, text=True, **pipes)


def wait(worker: Any) -> None:
    """Until a worker has begun."""
    if worker.stdout.readline() != "ready\n":
        raise SystemExit(f"a worker ended: see {LOG}")


def collected(logs: list[list[tuple[float, int]]]) -> Run:
    """Times from when all had made a step, and the largest lead from then on."""
    start = max(log[0][0] for log in logs)
    kept = [[(at - start, lead) for at, lead in log if at >= start] for log in logs]
    times = [np.array([at for at, _ in log]) for log in kept]
    earlier = [len(log) - len(later) for log, later in zip(logs, kept, strict=True)]
    return Run(times, earlier, max(lead for log in kept for _, lead in log))


def table(runs: dict[str, Run]) -> str:
    rows = ["| mode | fastest, steps/s | slow, steps/s | largest lead |", "|---|---:|---:|---:|"]
    for name, each in runs.items():
        fastest = max(each.rate(worker) for worker in range(WORKERS))
        lead = each.lead if MODES[name].max_delay is not None else "-"
        rows.append(f"| {MODES[name].title} | {fastest:.1f} | {each.rate(SLOW):.1f} | {lead} |")
    return "\n".join(rows) + "\n"


def write(found: str) -> None:
    """Put the section in its place on the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{TEXT.format(table=found)}{END}{after}")


def plot(runs: dict[str, Run]) -> None:
    """Steps over time: a panel for each mode with a straggler."""
    import matplotlib.pyplot as plt

    shown = {name: each for name, each in runs.items() if MODES[name].has_straggler}
    figure, panels = plt.subplots(1, len(shown), figsize=(11, 2.8), layout="constrained")
    for panel, (name, each) in zip(panels, shown.items(), strict=True):
        fastest = max(range(WORKERS), key=each.rate)
        for worker, label in ((fastest, "fastest"), (SLOW, "slow")):
            times = each.times[worker]
            steps = each.earlier[worker] + np.arange(len(times))
            panel.step(times, steps, where="post", label=label)
        panel.set(title=MODES[name].title, xlabel="seconds")
        panel.title.set_fontsize(9)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("steps")
    panels[0].legend()
    figure.savefig(PLOT, dpi=110)


def main() -> None:
    """Run all modes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs; write no files")
    parser.add_argument("--only", choices=MODES, help="one mode; write no files")
    given = parser.parse_args()
    runs = {
        name: run(name, QUICK_SECONDS if given.quick else SECONDS)
        for name in ([given.only] if given.only else MODES)
    }
    found = table(runs)
    print(found)
    if not (given.quick or given.only):
        write(found)
        plot(runs)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("["):
        run_task(*json.loads(sys.argv[1]))
    else:
        main()
