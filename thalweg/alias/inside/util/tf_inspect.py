"""`tensorflow.python.util.tf_inspect`: Python's inspect, seeing through decorators."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from thalweg.alias.inside.util.tf_decorator import unwrap
from thalweg.alias.legacy import ArgSpec

FullArgSpec = inspect.FullArgSpec
currentframe = inspect.currentframe
getframeinfo = inspect.getframeinfo
getmembers = inspect.getmembers
getmro = inspect.getmro
stack = inspect.stack


def getfullargspec(obj: Any) -> Any:
    """The parameters of a function, as its outermost decorator with a signature says."""
    decorators, target = unwrap(obj)
    given = [d.decorator_argspec for d in decorators if d.decorator_argspec is not None]
    if given:
        spec: Any = given[0]
        return spec if len(spec) > len(ArgSpec._fields) else _full(spec)
    return _own(target) if _is_ours(target) else inspect.getfullargspec(target)


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).split(".")[0] == "thalweg"


def _own(function: Any) -> Any:
    """The parameters of a function of Thalweg's: without types, which TensorFlow's have not."""
    spec = inspect.getfullargspec(inspect.unwrap(function))
    return spec._replace(annotations={})


def _full(spec: Any) -> Any:
    return FullArgSpec(spec[0], spec[1], spec[2], spec[3], [], None, {})


def getargspec(obj: Any) -> Any:
    """Names, `*args`, `**kwargs` and defaults of the parameters of a function."""
    if inspect.isclass(obj):
        obj = obj.__init__
    elif not inspect.isroutine(obj) and not isinstance(obj, functools.partial) and callable(obj):
        obj = type(obj).__call__
    return ArgSpec(*getfullargspec(obj)[:4])


def getcallargs(*func_and_positional: Any, **named: Any) -> dict[str, Any]:
    """Parameter -> argument of a call."""
    function, *positional = func_and_positional
    bound = inspect.signature(unwrap(function)[1]).bind(*positional, **named)
    bound.apply_defaults()
    return dict(bound.arguments)


def getdoc(object: Any) -> str | None:
    """The docstring."""
    return inspect.getdoc(object)


def _through(function: Any) -> Any:
    """A function of inspect that looks at what is decorated."""

    @functools.wraps(function)
    def look(object: Any) -> Any:
        return function(unwrap(object)[1])

    return look


getfile = _through(inspect.getfile)
getmodule = _through(inspect.getmodule)
getsource = _through(inspect.getsource)
getsourcefile = _through(inspect.getsourcefile)
getsourcelines = _through(inspect.getsourcelines)
isbuiltin = _through(inspect.isbuiltin)
isclass = _through(inspect.isclass)
isframe = _through(inspect.isframe)
isfunction = _through(inspect.isfunction)
isgenerator = _through(inspect.isgenerator)
isgeneratorfunction = _through(inspect.isgeneratorfunction)
ismethod = _through(inspect.ismethod)
ismodule = _through(inspect.ismodule)
isroutine = _through(inspect.isroutine)
signature = _through(inspect.signature)
