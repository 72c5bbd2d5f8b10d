"""A process that saves without end is killed; what it leaves can always be read."""

import os
import random
import subprocess
import sys

import numpy as np

import thalweg as tf

KILLS = 50 if os.environ.get("THALWEG_SOAK") else 2

PROGRAM = """
import sys
import thalweg as tf
path, first = sys.argv[1], int(sys.argv[2])
a = tf.Variable(tf.zeros([300, 1000]), name="a")
b = tf.Variable(tf.zeros([70]), name="b")
value = tf.placeholder(tf.float32, [])
change = tf.group(a.assign(tf.fill([300, 1000], value)), b.assign(tf.fill([70], value)))
saver = tf.train.Saver(max_to_keep=2)
with tf.Session() as session:
    step = first
    while True:
        step += 1
        session.run(change, {value: float(step)})
        saver.save(session, path, global_step=step if step % 3 else None, background=step % 2 == 0)
        print(step, flush=True)
"""


def saved_until_killed(path, first, saves):
    """Run the program from a step; kill it when it has said that some saves are done."""
    command = [sys.executable, "-c", PROGRAM, path, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for _ in range(saves):
            last = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
    return int(rest[-1]) if rest else last


def test_what_a_killed_process_leaves(tmp_path):
    rng = random.Random(0)
    step = 0
    for _ in range(KILLS):
        step = saved_until_killed(str(tmp_path / "m"), step, rng.randrange(2, 9))
        latest = tf.train.latest_checkpoint(str(tmp_path))
        a, b = (tf.train.load_variable(latest, name) for name in "ab")
        assert len({*np.unique(a), *np.unique(b)}) == 1
        assert step - 1 <= a[0, 0] <= step + 1  # a save in the background may not be done yet
