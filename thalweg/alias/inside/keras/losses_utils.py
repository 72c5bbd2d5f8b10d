"""`tensorflow.python.keras.utils.losses_utils`: how losses of examples become one."""

from __future__ import annotations

from typing import Any


class ReductionV2:
    """How losses of examples are combined."""

    AUTO = "auto"
    NONE = "none"
    SUM = "sum"
    SUM_OVER_BATCH_SIZE = "sum_over_batch_size"

    @classmethod
    def all(cls) -> tuple[str, ...]:
        """All ways."""
        return cls.AUTO, cls.NONE, cls.SUM, cls.SUM_OVER_BATCH_SIZE

    @classmethod
    def validate(cls, key: str) -> None:
        """Raise ValueError for what is no way."""
        if key not in cls.all():
            raise ValueError(f"Invalid Reduction Key {key}.")


def scale_loss_for_distribution(loss_value: Any) -> Any:
    """The loss itself: there is one replica."""
    return loss_value
