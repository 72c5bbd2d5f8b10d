"""What two answers to a case disagree about.

`disagreements(case, ours, theirs)` gives (kind, detail) pairs. Kinds: hang, crash, raises, accepts,
error class, outputs, dtype, shape, nan, value, static shape, inference, gradient none, gradient
raises, gradient accepts, gradient shape, gradient nan, gradient value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz_tf.case import Case
from tools.fuzz_tf.wire import dtype_name

Answer = dict[str, Any]
Array = np.ndarray[Any, Any]
Found = tuple[str, str]

#: TensorFlow does not take the dtype, or has no kernel for it on a CPU: nothing to compare with
_NO_KERNEL = (
    "No OpKernel was registered",
    "Could not find device for node",
    "not in list of allowed values",
    "The input data type is not supported",
)


def unsupported(theirs: Answer) -> bool:
    """Whether TensorFlow has the function but not for this dtype."""
    return theirs["kind"] == "error" and any(words in theirs["text"] for words in _NO_KERNEL)


def disagreements(case: Case, ours: Answer, theirs: Answer) -> list[Found]:
    """All that the answers disagree about."""
    for side, answer, other in (("thalweg", ours, theirs), ("tensorflow", theirs, ours)):
        if answer["kind"] in ("hang", "crash"):
            meanwhile = f"the other side raised {other['class']}" if "class" in other else ""
            return [(f"{side} {answer['kind']}", f"{answer['text']}; {meanwhile}")]
    if ours["kind"] == "error" or theirs["kind"] == "error":
        return list(_errors(ours, theirs, ""))
    return [*_outputs(case, ours, theirs), *_gradients(case, ours, theirs)]


def _errors(ours: Answer, theirs: Answer, prefix: str) -> Iterator[Found]:
    if theirs["kind"] != "error":
        yield f"{prefix}raises", f"{ours['class']}: {ours['text']}"
    elif ours["kind"] != "error":
        yield f"{prefix}accepts", f"TensorFlow: {theirs['class']}: {theirs['text']}"
    elif ours["class"] != theirs["class"]:
        texts = [f"{side['class']}: {side['text'][:200]}" for side in (ours, theirs)]
        yield f"{prefix}error class", " / ".join(texts)


def _outputs(case: Case, ours: Answer, theirs: Answer) -> Iterator[Found]:
    count = len(ours["dtypes"])
    if count != len(theirs["dtypes"]):
        yield "outputs", f"{count} against {len(theirs['dtypes'])}"
        return
    for i in range(count):
        mine, other = ours["arrays"][i], theirs["arrays"][i]
        yield from _declared(ours, theirs, i, mine.shape)
        yield from compared(mine, other, case.ulps, case.scaled, f"output {i}")


def _declared(ours: Answer, theirs: Answer, i: int, shape: tuple[int, ...]) -> Iterator[Found]:
    if ours["dtypes"][i] != theirs["dtypes"][i]:
        yield "dtype", f"output {i}: {ours['dtypes'][i]} against {theirs['dtypes'][i]}"
    mine, other = ours["static"][i], theirs["static"][i]
    if mine is not None and not _compatible(mine, shape):
        yield "static shape", f"output {i}: inferred {mine}, has {list(shape)}"
    elif _less_known(mine, other):
        yield "inference", f"output {i}: {mine} against {other}"


def _compatible(static: list[int], shape: tuple[int, ...]) -> bool:
    return len(static) == len(shape) and all(
        s in (-1, d) for s, d in zip(static, shape, strict=True)
    )


def _less_known(mine: list[int] | None, other: list[int] | None) -> bool:
    if other is None:
        return False
    if mine is None:
        return True
    return any(m == -1 and o != -1 for m, o in zip(mine, other, strict=False))


def compared(
    mine: Array, other: Array, ulps: float, scaled: bool, where: str, least: float = 0.0
) -> Iterator[Found]:
    """What two arrays disagree about, the gravest only; `least` is the smallest scale of errors."""
    if dtype_name(mine) != dtype_name(other):
        yield "dtype", f"{where}: {dtype_name(mine)} against {dtype_name(other)}"
    elif mine.shape != other.shape:
        yield "shape", f"{where}: {mine.shape} against {other.shape}"
    elif mine.dtype.kind in "OSUbiu":
        yield from _exact(mine, other, where)
    else:
        yield from _close(mine, other, ulps, scaled, where, least)


def _exact(mine: Array, other: Array, where: str) -> Iterator[Found]:
    wrong = mine != other
    if np.any(wrong):
        yield "value", f"{where}: {_example(mine, other, np.asarray(wrong))}"


def _close(
    mine: Array, other: Array, ulps: float, scaled: bool, where: str, least: float
) -> Iterator[Found]:
    info = ml_dtypes.finfo(mine.real.dtype)
    wide = np.complex128 if mine.dtype.kind == "c" else np.float64
    with np.errstate(invalid="ignore"):
        one, two = mine.astype(wide), other.astype(wide)
    odd = ~(np.isfinite(one) & np.isfinite(two))
    with np.errstate(invalid="ignore"):
        strange = odd & ~((one == two) | (np.isnan(one) & np.isnan(two)))
        distance = np.abs(one - two)
    if np.any(strange):
        yield "nan", f"{where}: {_example(mine, other, strange)}"
        return
    finite = np.where(odd, 0.0, np.abs(two))
    reach = np.maximum(finite, finite.max(initial=least)) if scaled else finite
    wrong = ~odd & (distance > ulps * float(info.eps) * reach + 2 * float(info.tiny))
    if np.any(wrong):
        yield "value", f"{where}: {_example(mine, other, wrong)}"


def _example(mine: Array, other: Array, wrong: Array) -> str:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{mine[place]!r} against {other[place]!r} at {place}, {int(wrong.sum())} of {wrong.size}"
    )


def _gradients(case: Case, ours: Answer, theirs: Answer) -> Iterator[Found]:
    mine, other = ours.get("gradients"), theirs.get("gradients")
    if mine is None or other is None:
        return
    if _no_gradient(other):
        return
    if "error" in (mine["kind"], other["kind"]):
        yield from _errors(mine, other, "gradient ")
        return
    if mine.get("given") != other.get("given"):
        yield "gradient none", f"given {mine.get('given')} against {other.get('given')}"
        return
    yield from _gradient_values(case, ours, theirs)


def _no_gradient(other: Answer) -> bool:
    """TensorFlow has no gradient of the op, or no kernel for it: nothing to compare with."""
    return other["kind"] == "error" and (
        other["class"] == "LookupError" or any(words in other["text"] for words in _NO_KERNEL)
    )


def _gradient_values(case: Case, ours: Answer, theirs: Answer) -> Iterator[Found]:
    start = len(ours["dtypes"])
    pairs = zip(ours["arrays"][start:], theirs["arrays"][start:], strict=True)
    for number, (one, two) in enumerate(pairs):
        static = ours["gradients"]["static"][number]
        if static is not None and not _compatible(static, one.shape):
            yield "gradient static shape", f"gradient {number}: inferred {static}, has {one.shape}"
        for kind, detail in compared(one, two, 4 * case.ulps, True, f"gradient {number}", 0.3):
            yield f"gradient {kind}", detail
