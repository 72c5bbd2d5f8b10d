"""`@tf.function`: a Python function, traced once for each signature of its arguments.

A call looks up the trace for its arguments (`function_cache`), which is inlined in graph code and
runs as one compiled step in eager code. The most recent calls are cached with their programs, so
that a repeated eager call costs microseconds.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, cast, overload

from thalweg.functions.eager import EAGER
from thalweg.functions.traced.concrete import MISS, ConcreteFunction
from thalweg.functions.traced.function_cache import Report, TraceCache
from thalweg.functions.traced.signature import Arguments, Parameters, arguments_of
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Structure, UserObject
from thalweg.graph.origin import user_line
from thalweg.public import public


class Function:
    """A Python function that is called through its traces."""

    def __init__(self, python_function: Callable[..., Any], traces: TraceCache) -> None:
        self._python_function = python_function
        self._traces = traces
        self._call_cache = traces.call_cache
        self._bound: dict[int, TraceCache] = {}  # by the id of an instance
        self._held: list[Any] = []  # the instances that cannot be referenced weakly
        functools.update_wrapper(cast("Any", self), _innermost(python_function), updated=())

    # Properties

    @property
    def python_function(self) -> Callable[..., Any]:
        """The Python function that is traced."""
        return self._python_function

    @property
    def input_signature(self) -> tuple[Any, ...] | None:
        """The specs of the arguments; None if there are none."""
        return self._traces.parameters.specs

    @property
    def name(self) -> str:
        """The name of the function."""
        return self._traces.name

    @property
    def variables(self) -> list[Any]:
        """The variables that the first call created."""
        return list(self._traces.variables)

    def explain(self) -> Report:
        """How often the function was called and traced, and why: an object to print."""
        return self._traces.report()

    def experimental_get_tracing_count(self) -> int:
        """How often the function was traced."""
        return self._traces.count

    def __repr__(self) -> str:
        count = self._traces.count
        return f"<tf.function {self.name}{self._traces.parameters}, traced {count} times>"

    # Calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._traces.calls += 1
        is_cacheable = not kwargs and get_default_graph() is EAGER
        if is_cacheable:
            result = self._call_cache.run(args)
            if result is not MISS:
                return result
        arguments = self._arguments(args, kwargs)
        concrete = self._traces.find(self._python_function, arguments)
        result = concrete.call(arguments.tensors)
        if is_cacheable:
            self._call_cache.add(args, arguments.tensors, concrete)
        return result

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for arguments like these, some of which may be `tf.TensorSpec`s."""
        specs = self.input_signature
        if specs is not None and not args and not kwargs:
            args = specs
        return self._traces.find(self._python_function, self._arguments(args, kwargs))

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        parameters = self._traces.parameters
        bound = parameters.bind(args, kwargs)
        return arguments_of(bound) if parameters.specs is None else parameters.bind_specs(bound)

    # Methods

    def __get__(self, instance: Any, owner: Any = None) -> Function:
        """The bound function of an instance, which has its own traces while the instance lives."""
        if instance is None:
            return self
        method = MethodType(self._python_function, instance)
        return Function(method, self._traces_of(instance, method))

    def _traces_of(self, instance: Any, method: Any) -> TraceCache:
        """The traces of an instance. Another instance that is equal to it has its own: a trace
        contains the state of the instance that it was made for."""
        key = id(instance)
        traces = self._bound.get(key)
        if traces is None:
            traces = self._bound.setdefault(key, self._traces.empty_for(method))
            try:
                weakref.finalize(instance, self._bound.pop, key, None)
            except TypeError:  # keep the instance alive: its id is not reused
                self._held.append(instance)
        return traces


def _innermost(function: Any) -> Any:
    """The function inside partials and methods, which has a name and a docstring."""
    is_partial = isinstance(function, functools.partial)
    inner = getattr(function, "func" if is_partial else "__func__", None)
    return function if inner is None else _innermost(inner)


def _name(function: Callable[..., Any]) -> str:
    inner = _innermost(function)
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return "lambda" if name == "<lambda>" else name.lstrip("_") or "function"


@overload
def function(
    func: Callable[..., Any],
    input_signature: Sequence[Structure] | None = None,
    autograph: bool = True,
    experimental_autograph_options: UserObject = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    *,
    reduce_retracing: bool | None = None,
    jit_compile: bool | None = None,
    experimental_implements: str | None = None,
    experimental_follow_type_hints: bool | None = None,
    name: str | None = None,
) -> Function: ...
@overload
def function(
    func: None = None,
    input_signature: Sequence[Structure] | None = None,
    autograph: bool = True,
    experimental_autograph_options: UserObject = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    *,
    reduce_retracing: bool | None = None,
    jit_compile: bool | None = None,
    experimental_implements: str | None = None,
    experimental_follow_type_hints: bool | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Function]: ...
@public("function", "contrib.eager.function", "contrib.eager.defun")
def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Structure] | None = None,
    autograph: bool = True,
    experimental_autograph_options: UserObject = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    *,
    reduce_retracing: bool | None = None,
    jit_compile: bool | None = None,
    experimental_implements: str | None = None,
    experimental_follow_type_hints: bool | None = None,
    name: str | None = None,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Trace a Python function and call it through its traces: `@tf.function` above a `def`.

    The function runs in Python once for each signature of its arguments: tensors and arrays by
    dtype and shape (in eager code, a size that changes is unknown from the second trace on), Python
    numbers and strings by value, other objects by identity. Python's `if` and `while` are evaluated
    while tracing; write `tf.cond` and `tf.while_loop` for conditions on tensors. Every trace is
    compiled.
    """
    relax_options = {experimental_relax_shapes, reduce_retracing} - {None}
    relax_shapes = False not in relax_options if relax_options else None

    def decorate(inner: Callable[..., Any]) -> Function:
        if not callable(inner):
            raise TypeError(f"tf.function takes a function, not {inner!r} (at {user_line()})")
        if isinstance(inner, Function):
            inner = inner.python_function
        parameters = Parameters(inner, input_signature)
        return Function(inner, TraceCache(name or _name(inner), parameters, relax_shapes))

    return decorate if func is None else decorate(func)
