"""Names that left Python, NumPy and unittest since TensorFlow 1 was young, put back.

What needs more than a name is in `old_arrays.py`.
`thalweg run` calls `restore` in the process of the program, which it was asked to run as it is;
`install` does not.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import functools
import importlib.util
import inspect
import io
import operator
import pickle
import queue
import sys
import time
import types
import unittest
import urllib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.graph import literal


def _in1d(a: Any, b: Any, **options: Any) -> Any:
    return np.isin(np.ravel(a), b, **options)


def _asfarray(a: Any, dtype: Any = np.float64) -> Any:
    return np.asarray(a, dtype=dtype)


def _with_newshape(reshape: Any) -> Any:
    """`np.reshape` that still takes its shape as `newshape`."""

    @functools.wraps(reshape)
    def reshaped(*args: Any, **kwargs: Any) -> Any:
        if "newshape" in kwargs:
            kwargs["shape"] = kwargs.pop("newshape")
        return reshape(*args, **kwargs)

    return reshaped


def _copying_if_needed(array: Any) -> Any:
    """`np.array` of which `copy=False` still means that a copy is made only where it must be."""

    @functools.wraps(array)
    def made(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("copy") is False:
            kwargs["copy"] = None
        return array(*args, **kwargs)

    return made


def _with_python_types(issubdtype: Any) -> Any:
    """`np.issubdtype` that still takes Python's types for all numbers of their kind."""
    kinds = {float: np.floating, int: np.signedinteger, complex: np.complexfloating}

    @functools.wraps(issubdtype)
    def compared(arg1: Any, arg2: Any) -> Any:
        return issubdtype(arg1, kinds.get(arg2, arg2) if isinstance(arg2, type) else arg2)

    return compared


def _with_iterators(stack: Any) -> Any:
    """A function that stacks arrays and still takes them from an iterator."""

    @functools.wraps(stack)
    def stacked(arrays: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(arrays, collections.abc.Iterator):
            arrays = list(cast("collections.abc.Iterator[Any]", arrays))
        return stack(arrays, *args, **kwargs)

    return stacked


def _in_list(function: Any) -> Any:
    """A function that still gives its arrays in a list, not a tuple."""

    @functools.wraps(function)
    def listed(*args: Any, **kwargs: Any) -> Any:
        return list(function(*args, **kwargs))

    return listed


def _iterator(method: str) -> Callable[[Any], Any]:
    """A function that gives an iterator over what a method of its argument returns."""
    return lambda mapping: iter(getattr(mapping, method)())


def _add_metaclass(meta: Any) -> Callable[[Any], Any]:
    return lambda kind: meta(kind.__name__, kind.__bases__, _body(kind))


NUMPY: dict[str, Any] = {
    "float": float,
    "int": int,
    "bool": bool,
    "object": object,
    "str": str,
    "complex": complex,
    "unicode": str,
    "float_": np.float64,
    "complex_": np.complex128,
    "string_": np.bytes_,
    "unicode_": np.str_,
    "Inf": np.inf,
    "infty": np.inf,
    "NaN": np.nan,
    "NAN": np.nan,
    "PINF": np.inf,
    "NINF": -np.inf,
    "product": np.prod,
    "cumproduct": np.cumprod,
    "alltrue": np.all,
    "sometrue": np.any,
    "round_": np.round,
    "row_stack": np.vstack,
    "in1d": _in1d,
    "asscalar": operator.methodcaller("item"),
    "asfarray": _asfarray,
}

UNITTEST = {
    "assertEquals": "assertEqual",
    "assertNotEquals": "assertNotEqual",
    "assertAlmostEquals": "assertAlmostEqual",
    "assertNotAlmostEquals": "assertNotAlmostEqual",
    "assertItemsEqual": "assertCountEqual",
    "assertRaisesRegexp": "assertRaisesRegex",
    "assertRegexpMatches": "assertRegex",
    "assertNotRegexpMatches": "assertNotRegex",
    "assert_": "assertTrue",
}

SIX: dict[str, Any] = {
    "PY2": False,
    "PY3": True,
    "string_types": (str,),
    "text_type": str,
    "binary_type": bytes,
    "integer_types": (int,),
    "class_types": (type,),
    "MAXSIZE": sys.maxsize,
    "iteritems": _iterator("items"),
    "iterkeys": _iterator("keys"),
    "itervalues": _iterator("values"),
    "int2byte": operator.methodcaller("to_bytes", 1, "big"),
    "b": operator.methodcaller("encode", "latin-1"),
    "u": str,
    "StringIO": io.StringIO,
    "BytesIO": io.BytesIO,
    "get_function_code": operator.attrgetter("__code__"),
    "add_metaclass": _add_metaclass,
}

SIX_MOVES: dict[str, Any] = {
    "xrange": range,
    "range": range,
    "zip": zip,
    "map": map,
    "filter": filter,
    "input": input,
    "reduce": functools.reduce,
    "cPickle": pickle,
    "queue": queue,
    "builtins": builtins,
    "urllib": urllib,
    "StringIO": io.StringIO,
}


def restore() -> None:
    """Put the old names back, without touching one that still exists."""
    add_missing(np, NUMPY)
    add_missing(collections, {name: getattr(collections.abc, name) for name in _abstract_classes()})
    np.array = _copying_if_needed(np.array)
    np.issubdtype = _with_python_types(np.issubdtype)
    np.reshape = _with_newshape(np.reshape)
    for name in ("hstack", "vstack", "dstack", "column_stack"):
        setattr(np, name, _with_iterators(getattr(np, name)))
    np.meshgrid = _in_list(np.meshgrid)
    literal.wrap_integers()
    add_missing(time, {"clock": time.perf_counter})
    add_missing(inspect, {"getargspec": getargspec})
    for old, new in UNITTEST.items():
        setattr(unittest.TestCase, old, getattr(unittest.TestCase, new))
    if "six" not in sys.modules and importlib.util.find_spec("six") is None:
        make_six()


def add_missing(module: types.ModuleType, names: dict[str, Any]) -> None:
    for name, value in names.items():
        if name not in vars(module):
            setattr(module, name, value)


def make_six() -> None:
    """A stand-in for the `six` package, as far as programs use it."""
    six, moves = types.ModuleType("six"), types.ModuleType("six.moves")
    vars(six).update(SIX, moves=moves, __path__=[])
    vars(moves).update(SIX_MOVES)
    sys.modules |= {"six": six, "six.moves": moves}


class ArgSpec(NamedTuple):
    """What `inspect.getargspec` returned."""

    args: Any
    varargs: Any
    keywords: Any
    defaults: Any


def _abstract_classes() -> list[str]:
    return vars(collections.abc)["__all__"]


def getargspec(function: Any) -> Any:
    return ArgSpec(*inspect.getfullargspec(function)[:4])


def _body(cls: type) -> dict[str, Any]:
    left_out = ("__dict__", "__weakref__")
    return {name: value for name, value in vars(cls).items() if name not in left_out}
