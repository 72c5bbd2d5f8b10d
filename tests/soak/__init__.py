"""What shows only after a while: memory, many threads, forks. Run by `make soak`."""

import os

SOAKING = bool(os.environ.get("THALWEG_SOAK"))


def rounds(quick: int, soak: int) -> int:
    """How long a test goes on: briefly, or with THALWEG_SOAK=1 until leaks would show."""
    return soak if SOAKING else quick


def resident() -> int:
    """The memory of this process that is really there, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
