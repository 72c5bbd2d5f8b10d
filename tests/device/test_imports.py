"""A program without a GPU imports nothing that generates code for one."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
import thalweg as tf

x = tf.placeholder(tf.float32, [2, 2])
with tf.Session() as session:
    session.run(tf.matmul(x, x), {x: [[1, 2], [3, 4]]})
    print(session.plan(tf.matmul(x, x), {x: [[1, 2], [3, 4]]}))
print("imported:", *sorted(name for name in sys.modules if "thalweg" in name and "cuda" in name))
"""


def test_a_program_on_a_cpu_imports_no_gpu() -> None:
    environment = {**os.environ, "THALWEG_CUDA": "0"}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    assert imported == ["imported:", "thalweg.device.cuda", "thalweg.device.cuda.presence"]
