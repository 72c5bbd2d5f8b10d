"""Names that left Python, NumPy and unittest after the tests were written, put back.

Only the process that runs a test file calls `restore`.
"""

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
from typing import Any

import numpy as np

from thalweg.cluster.addresses import free_ports

NUMPY = {
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
    "in1d": lambda a, b, **options: np.isin(np.ravel(a), b, **options),
    "asscalar": lambda a: a.item(),
    "asfarray": lambda a, dtype=np.float64: np.asarray(a, dtype=dtype),
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

SIX = {
    "PY2": False,
    "PY3": True,
    "string_types": (str,),
    "text_type": str,
    "binary_type": bytes,
    "integer_types": (int,),
    "class_types": (type,),
    "MAXSIZE": sys.maxsize,
    "iteritems": lambda d: iter(d.items()),
    "iterkeys": lambda d: iter(d.keys()),
    "itervalues": lambda d: iter(d.values()),
    "int2byte": operator.methodcaller("to_bytes", 1, "big"),
    "b": lambda s: s.encode("latin-1"),
    "u": lambda s: s,
    "StringIO": io.StringIO,
    "BytesIO": io.BytesIO,
    "get_function_code": operator.attrgetter("__code__"),
    "add_metaclass": lambda meta: lambda c: meta(c.__name__, c.__bases__, _body(c)),
}

SIX_MOVES = {
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
    add_missing(
        collections, {name: getattr(collections.abc, name) for name in collections.abc.__all__}
    )
    add_missing(time, {"clock": time.perf_counter})
    add_missing(inspect, {"getargspec": getargspec})
    for old, new in UNITTEST.items():
        setattr(unittest.TestCase, old, getattr(unittest.TestCase, new))
    if importlib.util.find_spec("six") is None:
        make_six()
    if importlib.util.find_spec("portpicker") is None:
        make_portpicker()


def add_missing(module: types.ModuleType, names: dict[str, Any]) -> None:
    for name, value in names.items():
        if name not in vars(module):
            setattr(module, name, value)


def make_six() -> None:
    """A stand-in for the `six` package, as far as the tests use it."""
    six, moves = types.ModuleType("six"), types.ModuleType("six.moves")
    vars(six).update(SIX, moves=moves, __path__=[])
    vars(moves).update(SIX_MOVES)
    sys.modules |= {"six": six, "six.moves": moves}


def make_portpicker() -> None:
    """A stand-in for the `portpicker` package."""
    picker = types.ModuleType("portpicker")
    vars(picker)["pick_unused_port"] = lambda: free_ports(1)[0]
    sys.modules["portpicker"] = picker


ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(function: Any) -> Any:
    return ArgSpec(*inspect.getfullargspec(function)[:4])


def _body(cls: type) -> dict[str, Any]:
    left_out = ("__dict__", "__weakref__")
    return {name: value for name, value in vars(cls).items() if name not in left_out}
