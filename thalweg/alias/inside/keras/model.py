"""`tensorflow.python.keras.engine.training`: the base class that Estimator's networks have.

They only ask to be called; multi-backend Keras's own Model takes no more than one input.
"""

from __future__ import annotations

from typing import Any


class Model:
    """An object that is called as its method `call`."""

    def __init__(self, name: str | None = None, **_: Any) -> None:
        self._name = name

    @property
    def name(self) -> str | None:
        """The name."""
        return self._name

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What subclasses compute."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute it."""
        return self.call(*args, **kwargs)
