"""The differences that stay, each with its reason.

A row names functions and kinds of disagreement by patterns (`fnmatch`), and narrows them by the
dtype, by a regular expression found in the case's code or in the disagreement's detail, or by a
condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from tools.fuzz_tf.case import Case


@dataclass(frozen=True)
class Known:
    """One difference that stays: what it explains and why."""

    function: str
    kind: str
    reason: str
    dtype: str = "*"
    code: str = ""
    detail: str = ""
    when: Callable[[Case], bool] | None = None

    def explains(self, case: Case, kind: str, detail: str) -> bool:
        """Whether a disagreement is this one."""
        return (
            self._names(case.function)
            and _any(self.kind, kind)
            and _any(self.dtype, case.dtype)
            and bool(re.search(self.code, "\n".join(case.code)))
            and bool(re.search(self.detail, detail))
            and (self.when is None or self.when(case))
        )

    def concerns(self, functions: Iterable[str]) -> bool:
        """Whether one of the functions is named."""
        return any(self._names(function) for function in functions)

    def _names(self, function: str) -> bool:
        return _any(self.function, function)


def _any(patterns: str, word: str) -> bool:
    return any(fnmatchcase(word, pattern.strip()) for pattern in patterns.split("|"))


def explanation(table: tuple[Known, ...], case: Case, kind: str, detail: str) -> Known | None:
    """The first row that explains a disagreement."""
    return next((row for row in table if row.explains(case, kind, detail)), None)


def _not_finite_or_out_of_range(case: Case) -> bool:
    """Whether a float of the first input has no value in the integers it is cast to."""
    target = re.search(r"tf\.(u?int\d+)\)", case.code[-1])
    values = np.asarray(case.arrays[0])
    if target is None or values.dtype.kind in "iub":
        return False
    limits, wide = np.iinfo(target[1]), np.asarray(values.real, np.float64)
    return not bool(np.all((wide >= float(limits.min)) & (wide < float(limits.max) + 1)))


def _unknown(case: Case) -> bool:
    return case.mode == "unknown"


def _strides_exceed_windows(case: Case) -> bool:
    windows, strides = (
        [int(n) for n in found.split(",")]
        for found in re.findall(r"(?:ksize|strides)=\[([^]]*)\]", case.code[-1])
    )
    return any(stride > window for stride, window in zip(strides, windows, strict=True))


_OF_2_21 = "TensorFlow 2.21 differs from 1.15, which Thalweg follows: "
_THEIR_BUG = "TensorFlow's own fault: "

TABLE: tuple[Known, ...] = (
    # Unknown ranks, which TensorFlow's Python code does not always expect
    Known(
        "*",
        "accepts|gradient accepts|gradient error class",
        _THEIR_BUG + "its Python code computes with a rank that is None, or refuses it",
        detail="NoneType|Cannot infer argument `num` from shape|must be known. Received: input"
        "|Had rank = None|None values not supported",
        when=_unknown,
    ),
    Known(
        "*_to_space_nd|space_to_batch_nd",
        "accepts",
        _THEIR_BUG + "block shapes of int64 and unknown rank are refused when the graph is built",
        detail="block_shape must have rank 1",
        when=_unknown,
    ),
    # Platform
    Known(
        "cast",
        "value",
        "C++ leaves open what becomes of floats beyond the range of an integer, and of NaN",
        when=_not_finite_or_out_of_range,
    ),
    Known(
        "*",
        "tensorflow crash",
        _THEIR_BUG + "the process ends (SIGSEGV, SIGFPE) while it reports an error",
        detail="exit status -(11|8): .*; the other side raised",
    ),
    Known(
        "*",
        "accepts|error class",
        _THEIR_BUG + "the text of an error is a null pointer",
        detail="basic_string::_M_construct null",
    ),
    Known(
        "rint",
        "tensorflow crash",
        _THEIR_BUG + "there is no kernel for bfloat16, and to say so ends the process",
        dtype="bfloat16",
        detail="exit status -11",
    ),
    Known(
        "truncatediv|truncatemod",
        "error class",
        _THEIR_BUG + "division by zero is reported as internal",
        detail="InternalError: Unexpected error in binary operator",
    ),
    # 2.21 is not 1.15
    Known(
        "linspace|lin_space",
        "gradient none",
        _OF_2_21 + "LinSpace was an op without a gradient",
    ),
    Known(
        "angle",
        "value",
        _OF_2_21 + "the angle of a real number was 0, also of negative ones",
        dtype="float*|bfloat16",
    ),
    Known(
        "math.cumulative_logsumexp",
        "nan",
        _OF_2_21 + "exclusive sums began with the lowest float instead of -inf",
        code="exclusive=True",
    ),
    Known(
        "math.cumulative_logsumexp",
        "raises",
        _OF_2_21 + "there was no kernel for bfloat16",
        dtype="bfloat16",
    ),
    Known(
        "reduce_join|strings.reduce_join",
        "shape|raises",
        "TensorFlow of 2016, to whose tests Thalweg is held, joins over all axes for an empty list "
        "and refuses axes of size 0",
    ),
    Known(
        "angle",
        "accepts",
        _OF_2_21 + "the angle of an integer was 0",
        dtype="int*|uint*",
        detail="TypeError: Expected u?int",
    ),
    Known(
        "log1p|math.log1p",
        "nan",
        _THEIR_BUG + "the logarithm of a complex 0 has NaN for an angle",
        dtype="complex*",
        detail=r"-inf\+0j",
    ),
    Known(
        "divide|div|truediv|realdiv|reciprocal|math.reciprocal",
        "gradient nan",
        "16-bit floats are computed in float32 inside a kernel: what overflows there need not here",
        dtype="float16",
    ),
    Known(
        "nn.selu|nn.elu",
        "value",
        _THEIR_BUG + "1 is taken off the rounded exponential: little is left of it near 0",
    ),
    Known(
        "math.xlogy|math.xdivy",
        "gradient value",
        _THEIR_BUG + "the slope is not conjugated in the gradient",
        dtype="complex*",
    ),
    Known(
        "map_fn",
        "gradient accepts",
        _THEIR_BUG + "there is no gradient of a map over nothing",
        detail="TensorArray has size zero",
    ),
    Known(
        "math.divide_no_nan|div_no_nan",
        "raises",
        _OF_2_21 + "there was no kernel for integers",
        dtype="int*|uint*",
    ),
    Known(
        "sparse_merge",
        "value|gradient value",
        "of equal places the first comes first here; TensorFlow's sort is not stable",
    ),
    Known(
        "saturate_cast",
        "value",
        _THEIR_BUG + "the bounds of 64-bit integers are compared as floats",
        dtype="int64|uint64",
    ),
    Known(
        "unravel_index",
        "tensorflow crash",
        _THEIR_BUG + "it dies of an empty list of numbers",
    ),
    Known(
        "image.convert_image_dtype",
        "value",
        "16-bit floats are scaled in float32 here: a product just below an integer stays below",
        dtype="float16|bfloat16",
    ),
    # Derivatives that are only here, or only right here
    Known(
        "nn.swish",
        "gradient nan",
        "the gradient is that of x sigmoid(x), in which dy x overflows for the largest floats",
        when=lambda case: bool((np.abs(case.arrays[0]) > 1e38).any()),
    ),
    Known(
        "sort|argsort|nn.top_k",
        "gradient accepts",
        _THEIR_BUG + "there is no gradient of nothing sorted",
        detail="Requires delta != 0",
    ),
    Known(
        "image.hsv_to_rgb",
        "gradient none",
        "Thalweg has a gradient of HSVToRGB, TensorFlow none",
        detail=r"given \[0\] against \[\]",
    ),
    Known(
        "sparse.*|sparse_*",
        "gradient none",
        "TensorFlow marks ops of SparseTensors as not differentiable that Thalweg differentiates",
        detail=r"against \[\]",
    ),
    Known(
        "matrix_determinant|linalg.det",
        "gradient value",
        _THEIR_BUG + "the determinant is not conjugated in the gradient",
        dtype="complex*",
    ),
    Known(
        "cumprod",
        "gradient value|gradient nan",
        _THEIR_BUG + "the gradient is not conjugated, and divides by zeros of x",
    ),
    Known(
        "signal.rfft*|signal.irfft*",
        "gradient value",
        _THEIR_BUG + "a transform of length 1 reads one element, but gradients reach others",
        code=r"fft_length=\[.*\b1\b",
    ),
    Known(
        "signal.rfft*|signal.irfft*",
        "gradient accepts|gradient error class",
        _THEIR_BUG + "gradients do not know of fft_length: shapes do not fit",
        code="fft_length",
    ),
    Known(
        "qr|linalg.qr",
        "gradient accepts|gradient error class",
        "Thalweg has the gradient of qr for shapes that only the step tells, TensorFlow not",
        detail="not implemented with dynamic shapes",
        when=_unknown,
    ),
    Known(
        "saturate_cast",
        "value",
        _THEIR_BUG + "the bounds of floats overflow when they become int64",
        dtype="int64",
        code="float",
    ),
    Known(
        "saturate_cast",
        "value",
        "NaN has no value in the integers",
        dtype="float*|bfloat16",
        when=lambda case: bool(np.isnan(case.arrays[0].astype(np.float64)).any()),
    ),
    Known(
        "saturate_cast",
        "gradient value",
        "NaN is within no bounds: nothing flows back to it here, all of the gradient there",
        when=lambda case: bool(np.isnan(case.arrays[0].astype(np.float64)).any()),
    ),
    Known(
        "gather_nd",
        "gradient accepts",
        _THEIR_BUG + "the gradient scatters into an empty shape and refuses",
        detail="empty output shape|Shape must be at least rank 1 but is rank 0|"
        "must match dimensions",
    ),
    Known(
        "image.rot90|image.flip_*|image.transpose*",
        "gradient accepts",
        _THEIR_BUG + "static shapes of the branches contradict each other",
        detail="Incompatible shapes between op input",
    ),
    Known(
        "sparse.maximum|sparse.minimum",
        "gradient accepts",
        _THEIR_BUG + "the registered gradient takes one argument too few",
        detail="positional arguments",
    ),
    Known(
        "switch_case",
        "gradient accepts",
        _THEIR_BUG + "in graphs without control flow v2 the gradient names an output that is not",
        detail="Connecting to invalid output",
    ),
    # Static shapes that TensorFlow knows more of
    Known(
        "TensorArray",
        "inference",
        "the number of elements of a list is part of its state here, not of its graph",
        code="concat",
    ),
    Known(
        "nn.collapse_repeated",
        "inference",
        "one op here, there a chain of ops whose sizes follow from constants",
        when=lambda case: case.mode == "constant",
    ),
    # Values that differ by how they are computed
    Known(
        "nn.avg_pool3d|nn.max_pool3d",
        "value|gradient value",
        _THEIR_BUG + "where strides exceed windows, SAME pads by a negative amount",
        code="SAME",
        when=_strides_exceed_windows,
    ),
    Known(
        "nn.dilation2d|nn.erosion2d|image.extract_patches|extract_image_patches",
        "raises",
        "a window that does not fit is an error here, there one that is a single element too long "
        "gives an empty result",
        detail="Negative dimension size",
    ),
    Known(
        "digamma|lgamma",
        "nan|gradient nan",
        "digamma has a pole at 0: -inf here as in SciPy, NaN there",
        detail=r"inf\) against np\.float\d+\(nan",
    ),
    Known(
        "image.adjust_contrast",
        "value|gradient value",
        _THEIR_BUG + "images of float64 are computed in float32",
        dtype="float64",
    ),
    Known(
        "quantize|quantization.quantize",
        "value",
        _THEIR_BUG + "32 bits are computed in float32, which has 24, and may overflow",
        code="qint32",
    ),
    Known(
        "strings.format",
        "value",
        _THEIR_BUG + "empty rows are printed as if more followed",
        when=lambda case: case.arrays[0].size == 0,
    ),
    Known(
        "io.parse_single_example|io.parse_example",
        "raises",
        _THEIR_BUG + "the fast parser skips unknown fields beyond the end of the bytes",
        detail="are no field of an Example",
    ),
    # Arguments that TensorFlow refuses without need
    Known(
        "reduce_*|math.reduce_*",
        "gradient accepts",
        _THEIR_BUG + "the gradient refuses axes of int64",
        detail="'DynamicStitch' Op have types .int64",
    ),
    Known(
        "where",
        "accepts",
        "the places of a scalar are one of no indices, or none; TensorFlow refuses scalars",
        detail="Unhandled input dimensions: 0",
    ),
    Known(
        "split",
        "accepts",
        _THEIR_BUG + "one piece of size -1 is compared before -1 is replaced",
        detail="If there is only one output",
    ),
    Known(
        "clip_by_average_norm",
        "accepts",
        _THEIR_BUG + "the norm is float32 whatever the tensor is",
        detail="has type float32 that does not match",
    ),
    Known(
        "nn.sufficient_statistics",
        "accepts",
        _THEIR_BUG + "a shift that is a number becomes float32 whatever the tensor is",
        detail="has type float32 that does not match",
    ),
    Known(
        "igamma|igammac|realdiv",
        "error class",
        "two faults at once: there the shapes are checked before the dtype",
        detail="list of allowed values.*Dimensions must be equal",
    ),
    Known(
        "nn.bias_add",
        "gradient accepts",
        _THEIR_BUG + "channels first of a matrix are only refused by the gradient",
        code="NCHW",
        detail="Shape must be at least rank 3",
        when=_unknown,
    ),
    Known(
        "histogram_fixed_width_bins",
        "accepts",
        _THEIR_BUG + "integers are multiplied with float64",
        dtype="int*",
        detail="has type float64 that does not match",
    ),
)
