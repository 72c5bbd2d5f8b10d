"""The spec of an op block, held against every op of the package, and of the public names."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import assert_close
from thalweg import public
from thalweg.graph import signature
from thalweg.graph.dtypes import ANY, COMPLEX, FLOATING, DType
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.signature import Argument
from thalweg.ir.expr import as_expr
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.loop import Operand
from thalweg.partition.transfers import Receiving

OURS = {name: op for name, op in REGISTRY.items() if op.__module__.startswith("thalweg.")}

SAMPLED = frozenset({tf.float32, tf.float64, tf.int32, tf.uint8, tf.bool, tf.complex64})

#: Ops with floating outputs that have no gradient, where that is right, and why.
NO_GRADIENT: dict[str, str] = {
    "BatchNormWithGlobalNormalizationGrad": "the backward op of an op of old graphs",
    "Const": "it has no inputs",
    "Dilation2DBackpropFilter": "no second derivatives of dilation",
    "Dilation2DBackpropInput": "no second derivatives of dilation",
    "FractionalAvgPoolGrad": "no second derivatives of fractional pooling",
    "FractionalMaxPoolGrad": "no second derivatives of fractional pooling",
    "FusedAttention": "the optimizer makes it, after gradients",
    "FusedAttentionGrad": "the optimizer makes it, after gradients",
    "RandomGammaGrad": "no second derivatives of samples",
}

#: Elementwise ops without a loop lowering, and why.
_SERIES = "a series or a recurrence, not one expression"
NO_ELEMENT: dict[str, str] = {
    "BesselI0e": _SERIES,
    "BesselI1e": _SERIES,
    "Betainc": _SERIES,
    "Digamma": _SERIES,
    "Igamma": _SERIES,
    "IgammaGradA": _SERIES,
    "Igammac": _SERIES,
    "Lgamma": _SERIES,
    "Polygamma": _SERIES,
    "Zeta": _SERIES,
    "Div": "truncates integers only: an element does not know its dtype",
    "FloorDiv": "floats are divided before they are rounded: an element does not know its dtype",
    "TruncateDiv": "floats are divided before they are rounded: an element does not know its dtype",
    "NextAfter": "works on the bits of floats",
}


def every_op(test: Callable[[str], None]) -> Callable[[], None]:
    """One test of all ops: thousands would take longer to be scheduled than to run."""
    return holds_for(sorted(OURS))(test)


def holds_for(names: Sequence[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """One test of many names, which says of each that fails why."""

    def decorate(test: Callable[[str], None]) -> Callable[[], None]:
        def all_of_them() -> None:
            faults = {name: found for name in names if (found := fault(test, name))}
            assert names
            assert not faults, "\n".join(f"{name}: {why}" for name, why in faults.items())

        all_of_them.__name__, all_of_them.__doc__ = test.__name__, test.__doc__
        return all_of_them

    return decorate


def fault(test: Callable[[str], None], name: str) -> str:
    """Why a test of a name fails, if it does."""
    try:
        test(name)
    except Exception as error:
        return "".join(traceback.format_exception(error))
    return ""


def dtypes_of(op: type[Op], argument: Argument) -> frozenset[DType]:
    """What dtypes an argument may have."""
    if argument.fixed is not None:
        return frozenset({argument.fixed})
    return op.parsed.allowed.get(argument.type, ANY)


@every_op
def test_block_is_complete(name: str) -> None:
    op = OURS[name]
    assert op.type_name == name
    assert op.has("numpy") != op.has("kernel"), "one kernel, pure or not"
    assert inspect.getdoc(op) != inspect.getdoc(Op), "the docstring is its maths"
    assert op.__dict__.get("__doc__"), "the docstring is its own"


@every_op
def test_signature_says_what_the_block_has(name: str) -> None:
    op = OURS[name]
    assert signature.parse(op.signature) == op.parsed
    names = [a.name for a in (*op.parsed.inputs, *op.parsed.outputs)]
    assert all(part.isidentifier() for part in names)
    assert set(op.parsed.allowed) <= type_names(op), "only its own types are constrained"
    inputs = [a.name for a in op.parsed.inputs]
    assert len(set(inputs)) == len(inputs)


@every_op
def test_rules_take_what_the_signature_gives(name: str) -> None:
    op = OURS[name]
    inputs = len(op.parsed.inputs)
    kernel = op.kernel if op.has("kernel") else op.numpy
    assert accepts(op.shape, 1 + inputs)
    calls_back = issubclass(op, Receiving)  # it calls its last argument when it is done
    given = 1 + inputs + op.has("kernel") + calls_back
    assert accepts(kernel, given) or accepts(kernel, inputs)
    if op.has("element"):
        assert accepts(op.element, 1 + inputs) or accepts(op.element, inputs)
    if op.has("gradient") and not any(a.is_list for a in op.parsed.outputs):
        assert accepts(op.gradient, 2 + len(op.parsed.outputs))


def accepts(function: Any, count: int) -> bool:
    """Whether a function may be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function of NumPy's own tells nothing
        return True
    return True


@every_op
def test_floating_outputs_say_how_gradients_flow(name: str) -> None:
    op = OURS[name]
    floating = FLOATING | COMPLEX
    if any(dtypes_of(op, output) & floating for output in op.parsed.outputs):
        is_stated = op.has("gradient") or op.not_differentiable or op.stateful
        assert is_stated != (name in NO_GRADIENT)


@every_op
def test_elementwise_ops_have_a_loop_lowering(name: str) -> None:
    op = OURS[name]
    assert op.elementwise or not op.has("element")
    if op.elementwise:
        assert op.has("element") != (name in NO_ELEMENT)


@every_op
def test_a_context_is_for_ops_with_state(name: str) -> None:
    op = OURS[name]
    if op.has("kernel"):
        assert op.stateful or op.host_only or op.blocking


def test_exemptions_are_ops() -> None:
    assert {*NO_GRADIENT, *NO_ELEMENT} <= set(OURS)


def test_type_names_are_unique_whatever_their_case() -> None:
    assert len({name.lower() for name in OURS}) == len(OURS)


@holds_for(sorted(n for n, op in OURS.items() if op.has("element")))
def test_elements_use_functions_that_code_generators_know(name: str) -> None:
    op = made(OURS[name])
    for dtype in (np.float32, np.int32, np.bool_):  # one of which it takes
        inputs = [Operand(n, (), np.dtype(dtype))[()] for n in range(len(op.parsed.inputs))]
        with contextlib.suppress(Unsupported):
            assert as_expr(op.element(*inputs)).dtype is not None
            return
    raise AssertionError(f"{name} takes none of these dtypes")


def made(op: type[Op]) -> Op:
    """The op with its attributes at their defaults, and dtypes where it needs them."""
    needed = [name for name in op.fields if name in type_names(op)]
    return op(**dict.fromkeys(needed, tf.float32))


def type_names(op: type[Op]) -> set[str]:
    """The type variables and type fields of an op."""
    return {a.type for a in op.parsed.inputs + op.parsed.outputs if a.fixed is None}


@holds_for(sorted(n for n, op in OURS.items() if op.commutative))
def test_commutative_ops_commute(name: str) -> None:
    op = OURS[name]
    rng = np.random.default_rng(3)
    for dtype in sorted(dtypes_of(op, op.parsed.inputs[0]) & SAMPLED, key=lambda d: d.name):
        x, y = (rng.integers(0, 5, (4, 3)).astype(dtype.as_numpy_dtype) for _ in range(2))
        pairs = [([x, y],), ([y, x],)] if op.parsed.has_lists else [(x, y), (y, x)]
        one, other = (op().numpy(*pair) for pair in pairs)
        assert_close(one, other)


# Public names


def test_public_names_resolve() -> None:
    namespace = public.namespace()
    wrong = [name for name in namespace if attrgetter(name)(tf) is not namespace[name]]
    assert namespace
    assert wrong == []


def test_a_fault_is_told_with_its_name() -> None:
    def fails(name: str) -> None:
        assert name != "two", "not two"

    assert fault(fails, "one") == ""
    assert "AssertionError: not two" in fault(fails, "two")
    with pytest.raises(AssertionError, match="not two"):
        holds_for(["one", "two"])(fails)()


def test_public_functions_carry_a_docstring() -> None:
    bare = [
        name
        for name, value in public.namespace().items()
        if inspect.isfunction(value) and not inspect.getdoc(value)
    ]
    assert bare == []
