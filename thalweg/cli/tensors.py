"""One tensor of a file: printed with what statistics tell of it, or saved for NumPy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.cli.problem import Problem, named
from thalweg.cli.report import Report, printable, show
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graphdef.tensor_proto import make_ndarray
from thalweg.platform.dtype_traits import is_float, widened
from thalweg.platform.files.safetensors import dtype_name

_MAX_JSON = 10_000  # elements that are printed as JSON
_MAX_REPEATED = 256 << 20  # bytes of a tensor that is written as fewer elements, to be repeated


@dataclass(frozen=True)
class NamedArray:
    """A tensor and what it is called."""

    name: str
    array: NDArray[Any]

    @property
    def dtype(self) -> str:
        """The dtype by name, `string` for text."""
        kind = self.array.dtype
        return "string" if kind.kind in "SU" else dtype_name(kind)

    def facts(self) -> dict[str, Any]:
        """Dtype and shape, and where its values lie if they are numbers."""
        result: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.array.shape)}
        if not is_float(self.array.dtype) or not self.array.size:
            return result
        wide = widened(self.array)
        lost = int(wide.size - np.isfinite(wide).sum())
        result |= {"min": float(wide.min()), "max": float(wide.max())}
        result["mean"] = float(wide.mean(dtype=float))
        return result | ({"not finite": lost} if lost else {})


def print_tensor(path: str, tensor: NamedArray, as_json: bool) -> None:
    """Print a tensor; the middle of a large one is left out."""
    report = Report("tensor", tensor.name, {"file": path} | tensor.facts())
    if as_json:
        if tensor.array.size <= _MAX_JSON:
            report.facts["values"] = _listed(tensor.array)
        show(report, as_json)
        return
    show(report, as_json)
    print()
    for line in np.array2string(_readable(tensor.array)).splitlines():
        print(f"  {printable(line)}")


def save_tensor(path: str, tensor: NamedArray) -> None:
    """Write a tensor as a file of NumPy's."""
    with named(path), open(path, "wb") as file:
        np.save(file, _portable(tensor.array), allow_pickle=False)


def stored_array(path: str, name: str, tensor: Any) -> NDArray[Any]:
    """The array of a TensorProto, unless it claims to be far larger than what is written: one
    element may stand for many, but not for more than fit the memory."""
    shape = [dimension.size for dimension in tensor.tensor_shape.dim]
    claimed = prod(shape) * np.dtype(as_dtype(tensor.dtype).as_numpy_dtype).itemsize
    if any(size < 0 for size in shape) or claimed > max(_MAX_REPEATED, tensor.ByteSize()):
        raise Problem(f"{path}: {name!r} claims the shape {shape}, which the file has no data for")
    return make_ndarray(tensor)


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    return widened(array) if is_float(array.dtype) else array


def _portable(array: NDArray[Any]) -> NDArray[Any]:
    """An array that NumPy alone can load: narrow floats become float32, strings of equal length."""
    if array.dtype.kind == "O":
        return array.astype(np.bytes_)
    is_foreign = is_float(array.dtype) and array.dtype.kind != "f"
    return widened(array) if is_foreign else array


def _listed(array: NDArray[Any]) -> Any:
    """Nested lists; bytes are text."""
    if array.dtype.kind in "OS":
        return json.loads(json.dumps(array.tolist(), default=lambda b: b.decode(errors="replace")))
    return _readable(array).tolist()
