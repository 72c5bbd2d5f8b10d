"""A worker without a library: it answers, hangs, dies or babbles as the case's code says."""

import os
import sys
import threading
from typing import Any

from tools.fuzz_tf import wire


def take(count: int) -> bytes:
    data = sys.stdin.buffer.read(count)
    if len(data) < count:
        raise SystemExit
    return data


def answer(message: dict[str, Any]) -> dict[str, Any]:
    order = message["code"][-1]
    if order == "hang":
        threading.Event().wait()
    if order == "crash":
        print("last words", file=sys.stderr, flush=True)
        os._exit(11)
    return {"kind": "values", "static": [], "dtypes": [], "arrays": message["arrays"]}


while True:
    sys.stdout.buffer.write(wire.encode(answer(wire.read(take))))
    sys.stdout.buffer.flush()
