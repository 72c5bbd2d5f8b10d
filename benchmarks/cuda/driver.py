"""Launches of finished kernels through the CUDA driver, on memory and streams of PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MAX_DYNAMIC_SHARED = 8
_STATIC_SHARED = 48 << 10
_DTYPES = {"uint8": 0, "float16": 6, "float32": 7, "bfloat16": 9, "tfloat32": 11}
_NONE, _L2_256 = 0, 3
_SWIZZLES = {32: 1, 64: 2, 128: 3}
_MAP_BYTES = 128


def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """Call the driver; an error is an exception."""
    code = getattr(_library(), name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        _library().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {code} {text.value!r}")


def load(path: Path, entries: Sequence[str], shared: Sequence[int]) -> list[Any]:
    """The functions of a cubin, each allowed its shared memory."""
    module, result = ctypes.c_void_p(), list[Any]()
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(path.read_bytes()))
    for name, size in zip(entries, shared, strict=True):
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if size > _STATIC_SHARED:
            call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, ctypes.c_int(size))
        result.append(function)
    return result


def encoded(spec: dict[str, Any], words: Sequence[int]) -> Any:
    """A tensor map, for the addresses in argument words."""
    made = spec["map"]
    raw = (ctypes.c_uint8 * (2 * _MAP_BYTES))()
    target = ctypes.c_void_p(-(-ctypes.addressof(raw) // 64) * 64)
    rank = len(made["extents"])
    common = (
        target, ctypes.c_int(_DTYPES.get(made["dtype"], 0)), ctypes.c_uint(rank),
        ctypes.c_uint64(words[spec["argument"]] + made["address"]),
        (ctypes.c_uint64 * rank)(*made["extents"]),
        (ctypes.c_uint64 * (rank - 1))(*made["strides"]),
    )  # fmt: skip
    steps = (ctypes.c_uint * rank)(*made["steps"])
    last = (steps, _NONE, _SWIZZLES[made["box"][0] * made["itemsize"]], _L2_256, 0)
    window = made["windows"]
    if window is None:
        call("cuTensorMapEncodeTiled", *common, (ctypes.c_uint * rank)(*made["box"]), *last)
    else:
        corners = [(ctypes.c_int * 2)(*window[name]) for name in ("lower", "upper")]
        sizes = ctypes.c_uint(window["channels"]), ctypes.c_uint(window["pixels"])
        call("cuTensorMapEncodeIm2col", *common, *corners, *sizes, *last)
    copy = (ctypes.c_uint8 * _MAP_BYTES)()
    ctypes.memmove(copy, target, _MAP_BYTES)
    return copy


def launcher(variant: dict[str, Any], folder: Path, words: Sequence[int]) -> Callable[[int], None]:
    """A function that launches all entries of a kernel on a stream."""
    shapes = variant["shapes"]
    functions = load(folder / variant["cubin"], variant["entries"], [s["shared"] for s in shapes])
    cells: list[Any] = [ctypes.c_uint64(word) for word in words]
    cells += [encoded(spec, words) for spec in variant["maps"]]
    addresses = [ctypes.cast(ctypes.byref(cell), ctypes.c_void_p) for cell in cells]
    array = (ctypes.c_void_p * len(cells))(*addresses)
    launch = _library().cuLaunchKernel

    def run(stream: int, _keep: Any = cells) -> None:
        for function, shape in zip(functions, shapes, strict=True):
            code = launch(
                function, *shape["grid"], *shape["block"], shape["shared"],
                ctypes.c_void_p(stream), array, None,
            )  # fmt: skip
            if code:
                raise RuntimeError(f"cuLaunchKernel: {code}")

    return run
