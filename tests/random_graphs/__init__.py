"""Random graphs and random programs, against models that are too simple to be wrong."""

import os

from hypothesis import HealthCheck, settings

SHARE = float(os.environ.get("THALWEG_SOAK") or 0)  # of all examples: several processes share them
SOAKING = SHARE > 0


def examples(quick: int, soak: int = 5000) -> settings:
    """How many examples a test tries: always the same few, or with THALWEG_SOAK=1 many new ones."""
    return settings(
        max_examples=round(soak * SHARE) if SOAKING else quick,
        derandomize=not SOAKING,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
