"""A worker as the fuzzer sees it: send a message, wait for the answer, start again after a death.

A worker that gives no answer in time is killed, one that dies is replaced; either way the answer is
`{"kind": "hang"}` or `{"kind": "crash"}` and the next case has a fresh process.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from tools.fuzz_tf import wire

ROOT = Path(__file__).resolve().parents[2]


class Hang(Exception):
    """No answer within the time."""


class Crash(Exception):
    """The process ended instead of answering."""


class Process:
    """One worker process, started when it is first needed."""

    def __init__(self, command: list[str], seconds: float, start_seconds: float = 120) -> None:
        self.command = command
        self.seconds = seconds
        self.start_seconds = start_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None
        self.deadline = 0.0
        self.restarts = -1

    def send(self, message: dict[str, Any]) -> None:
        """Pass a message on; the clock of its answer starts."""
        grace = 0.0 if self.process else self.start_seconds
        pipe = self._started().stdin
        assert pipe is not None
        self.deadline = time.monotonic() + self.seconds + grace
        try:
            pipe.write(wire.encode(message))
            pipe.flush()
        except BrokenPipeError:
            pass  # the answer will tell

    def answer(self) -> dict[str, Any]:
        """The answer to the message sent last."""
        try:
            return wire.read(self._take)
        except Hang:
            self.stop()
            return {"kind": "hang", "text": f"no answer in {self.seconds:g} s", "arrays": []}
        except Crash:
            text = self._last_words()
            self.stop()
            return {"kind": "crash", "text": text, "arrays": []}

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send and wait."""
        self.send(message)
        return self.answer()

    def stop(self) -> None:
        """End the process; the next message starts another."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
        if self.errors is not None:
            self.errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            self.restarts += 1
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                cwd=ROOT,
                start_new_session=True,  # an interrupt is for the fuzzer, which reports
            )
        return self.process

    def _take(self, count: int) -> bytes:
        pipe = self._started().stdout
        assert pipe is not None
        parts: list[bytes] = []
        while count:
            ready, _, _ = select.select([pipe], [], [], max(0.0, self.deadline - time.monotonic()))
            if not ready:
                raise Hang
            part = os.read(pipe.fileno(), count)
            if not part:
                raise Crash
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _last_words(self) -> str:
        assert self.errors is not None
        status = self._started().wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        said = [line for line in lines if "WARNING" not in line]
        return f"exit status {status}: " + " | ".join(said[-3:])[-600:]


class Pair:
    """Thalweg's worker and TensorFlow's, at work on the same case at once."""

    def __init__(self, ours: Process, theirs: Process) -> None:
        self.ours = ours
        self.theirs = theirs

    def run(self, message: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Both answers."""
        self.ours.send(message)
        self.theirs.send(message)
        return self.ours.answer(), self.theirs.answer()

    def stop(self) -> None:
        """End both."""
        self.ours.stop()
        self.theirs.stop()
