"""Random graphs and random programs, against models that are too simple to be wrong."""

import os

from hypothesis import HealthCheck, settings

SOAKING = bool(os.environ.get("THALWEG_SOAK"))


def examples(quick: int, soak: int = 5000) -> settings:
    """How many examples a test tries: always the same few, or with THALWEG_SOAK=1 many new ones."""
    return settings(
        max_examples=soak if SOAKING else quick,
        derandomize=not SOAKING,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
