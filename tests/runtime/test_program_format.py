"""What the compiler makes, as bytes and back: equal, shared where it was, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import regions_of, shape
from thalweg.device.cpu.device import cpu_device
from thalweg.lower.lowering import lower
from thalweg.lower.specialise import Region
from thalweg.runtime.program_format import UNREADABLE, Unwritable, decode, encode


def region() -> Region:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [3, 4])
        (result,) = regions_of(tf.matmul(x, tf.ones([4, 2])) + 1)
        return result


def again(value: Any) -> Any:
    of = region()
    return decode(encode(value, of), of)


@pytest.mark.parametrize(
    "value",
    [
        None,
        -0.0,
        "é\udc80",
        2**80,
        b"\0bytes",
        (1, [2, {3: (4,)}], frozenset({5}), {6}),
        np.dtype(np.int16),
        np.dtype(ml_dtypes.bfloat16),
        ml_dtypes.bfloat16,
        np.float32,
        float("inf"),
    ],
    ids=repr,
)
def test_plain_values_come_back(value: Any) -> None:
    actual = again(value)
    assert actual == value and type(actual) is type(value)
    assert repr(actual) == repr(value)


@pytest.mark.parametrize("kind", [np.float32, np.int8, bool, np.complex64, ml_dtypes.bfloat16])
def test_arrays_and_scalars_come_back(kind: Any) -> None:
    for value in (np.ones((2, 0, 3), kind), np.arange(6).reshape(2, 3).astype(kind).T):
        actual = again(value)
        np.testing.assert_array_equal(actual, value)
        assert actual.dtype == value.dtype and actual.flags.writeable
    scalar = np.ones(1, kind)[0]
    assert again(scalar) == scalar and type(again(scalar)) is type(scalar)


def test_what_is_shared_stays_shared() -> None:
    array, of = np.ones(3), region()
    one, two = decode(encode((array, [array]), of), of)
    assert two[0] is one


def test_a_lowering_comes_back_as_it_was() -> None:
    of = region()
    made = lower(of, {tensor: shape(tensor) for tensor in of.inputs}, cpu_device().target)
    actual = decode(encode(made, of), of)
    assert actual.spec.region is of
    assert [launch.nodes for launch in actual.launches] == [
        launch.nodes for launch in made.launches
    ]
    assert list(actual.buffers) == list(made.buffers)
    assert encode(actual, of) == encode(made, of)


@pytest.mark.parametrize("thing", [print, lower, Path("a"), region])
def test_other_things_are_not_written(thing: Any) -> None:
    with pytest.raises(Unwritable):
        encode([thing], region())


def test_nodes_of_other_regions_are_not_written() -> None:
    with pytest.raises(Unwritable, match="no part of a program"):
        encode(region().nodes[0], region())


@pytest.mark.parametrize(
    "kind",
    [
        "builtins:print",
        "os:system",
        "thalweg.lower.lowering:lower",
        "thalweg.lower.lowering:Callable",
        "thalweg.lower.nowhere:Thing",
        "thalweg.runtime.session:BaseSession",
    ],
)
def test_only_classes_of_the_compiler_are_made(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module, _, name = kind.partition(":")
    call = f"c{module}\n{name}\n(S'harm'\ntR.".encode()  # as pickles write it
    with pytest.raises(UNREADABLE):
        decode(call, region())
    assert not capsys.readouterr().out
