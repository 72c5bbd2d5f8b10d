"""`tensorflow.python.util.module_wrapper`: modules that warn of old names; here none does."""

from __future__ import annotations

from types import ModuleType


class _EveryModule(type):
    """The class of a class that every module passes for an instance of."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, ModuleType)


class TFModuleWrapper(metaclass=_EveryModule):
    """What a library asks about before it wraps itself: it is told that it is wrapped already."""
