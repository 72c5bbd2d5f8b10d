"""Filtered tracebacks: only the user's frames are printed, unless disabled."""

from __future__ import annotations

import os
import sys
import traceback

import numpy as np
import pytest

import thalweg as tf
from thalweg.platform import tracebacks

PACKAGE = os.path.dirname(tf.__file__)


@pytest.fixture
def hook(monkeypatch, capsys):
    """Python's exception hook with the filter around it; returns the printed text of an error."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.delenv("THALWEG_FULL_TRACEBACK", raising=False)
    tf.debugging.enable_traceback_filtering()

    def printed(error):
        sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err

    yield printed
    tf.debugging.disable_traceback_filtering()


def raised(function):
    with pytest.raises(Exception) as caught, tf.Graph().as_default():
        function()
    return caught.value


def multiply():
    x = tf.placeholder(tf.float32)
    with tf.Session() as session:
        session.run(tf.matmul(x, tf.ones([4, 2])), {x: np.ones([2, 3])})


def call_back():
    def fail(_):
        raise KeyError("mine")

    tf.map_fn(fail, tf.ones([3]))


def wrap():
    def fail():
        return np.ones(3) @ np.ones(4)

    with tf.Session() as session:
        session.run(tf.py_func(fail, [], tf.float64))


@pytest.mark.parametrize("function", [multiply, call_back, wrap])
def test_only_the_users_frames_are_printed(hook, function):
    error = raised(function)
    text = hook(error)
    assert f"in {function.__name__}" in text
    assert PACKAGE not in text
    assert "frames inside thalweg are not shown" in text
    assert str(error) in text


def test_callbacks_of_the_user_are_printed(hook):
    assert "in fail" in hook(raised(call_back))
    text = hook(raised(wrap))
    assert "in fail" in text and "direct cause" in text


def test_errors_are_restored_after_printing(hook):
    error = raised(wrap)
    frames, cause = traceback.format_exception(error), error.__cause__
    hook(error)
    assert traceback.format_exception(error) == frames
    assert error.__cause__ is cause


def test_internal_chained_errors_are_omitted():
    error = raised(lambda: tf.as_dtype("no such"))
    inner = raised(multiply)
    while inner.__traceback__.tb_frame.f_code.co_filename == __file__:
        inner.__traceback__ = inner.__traceback__.tb_next
    mine = KeyError("mine")
    error.__cause__, inner.__cause__ = inner, mine
    with tracebacks.trimmed(error):
        assert error.__cause__ is mine
    assert error.__cause__ is inner


def test_cyclic_causes():
    first, second = raised(multiply), raised(call_back)
    first.__context__, second.__context__ = second, first
    with tracebacks.trimmed(first) as hidden:
        assert hidden > 0
        assert first.__context__ is second and second.__context__ is None
    first.__cause__ = first
    with tracebacks.trimmed(first):
        assert first.__cause__ is None
    assert first.__cause__ is first


def test_errors_without_our_frames_are_unchanged(hook):
    error = raised(lambda: int("x"))
    assert hook(error) == "".join(traceback.format_exception(error))


def test_filtering_can_be_disabled(hook, monkeypatch):
    error = raised(multiply)
    assert tf.debugging.is_traceback_filtering_enabled()
    monkeypatch.setenv("THALWEG_FULL_TRACEBACK", "1")
    assert PACKAGE in hook(error) and not tf.debugging.is_traceback_filtering_enabled()
    monkeypatch.delenv("THALWEG_FULL_TRACEBACK")
    tf.debugging.disable_traceback_filtering()
    assert PACKAGE in hook(error) and not tf.debugging.is_traceback_filtering_enabled()


def test_the_programs_own_hook_is_kept(monkeypatch):
    def own(*_):
        pass

    monkeypatch.setattr(sys, "excepthook", own)
    tf.debugging.enable_traceback_filtering()
    assert sys.excepthook is own


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        (["u.py", f"{PACKAGE}/a.py", f"{PACKAGE}/b.py"], [True, False, False]),
        (["u.py", f"{PACKAGE}/a.py", np.__file__], [True, False, False]),
        (["u.py", np.__file__], [True, True]),
        (
            ["u.py", f"{PACKAGE}/a.py", os.__file__, "u.py", np.__file__],
            [True, False, False, True, True],
        ),
        (["u.py", f"{PACKAGE}/a.py", "/x/site-packages/mine/a.py"], [True, False, True]),
        ([f"{PACKAGE}_models/a.py"], [True]),
    ],
)
def test_libraries_called_by_us_are_hidden(files, shown):
    assert list(tracebacks.is_shown(files)) == shown
