"""Errors: one class per status code, and the op they name."""

import pickle
import re
from dataclasses import dataclass

import pytest

import thalweg as tf
from thalweg import errors

CLASSES = errors.OpError.__subclasses__()


@dataclass(frozen=True)
class FakeNode:
    name: str = "layer/MatMul"
    type: str = "MatMul"
    origin: str = "model.py:12"
    node_def: str = "the serialized node"


def constant_name(cls: type[errors.OpError]) -> str:
    words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
    return "_".join(words).upper()


def test_every_code_has_a_class() -> None:
    assert {cls.code for cls in CLASSES} == set(range(1, 17))
    assert errors.OK == 0


@pytest.mark.parametrize("cls", CLASSES)
def test_class_and_code(cls: type[errors.OpError]) -> None:
    code = getattr(errors, constant_name(cls))
    error = cls(None, None, "it broke")
    assert (error.error_code, error.message, str(error)) == (code, "it broke", "it broke")
    assert error.op is None and error.node_def is None
    assert errors.exception_type_from_error_code(code) is cls
    assert errors.error_code_from_exception_type(cls) == code


def test_unknown_codes_and_classes() -> None:
    with pytest.raises(KeyError):
        errors.exception_type_from_error_code(errors.OK)
    with pytest.raises(KeyError):
        errors.error_code_from_exception_type(errors.OpError)
    assert errors.UnknownError(None, None, "odd", 37).error_code == 37
    assert type(errors.of_code(37, None, "odd")) is errors.UnknownError
    assert type(errors.of_code(errors.ABORTED, None, "odd")) is errors.AbortedError


def test_the_text_names_the_op_and_its_origin() -> None:
    error = errors.OpError("def", FakeNode(), "it broke", errors.INTERNAL)
    assert str(error) == "it broke\n  in op 'layer/MatMul' (MatMul), created at model.py:12"
    assert (error.node_def, error.error_code) == ("def", errors.INTERNAL)
    assert str(errors.InternalError(None, FakeNode(origin=""), "it broke")) == "it broke"


def test_binding_to_a_node_keeps_class_cause_and_code() -> None:
    cause = ZeroDivisionError()
    raised = errors.UnknownError(None, None, "it broke", 37)
    raised.__cause__ = cause
    node = FakeNode()
    bound = raised.at(node)
    assert type(bound) is errors.UnknownError
    assert bound.op is node and bound.node_def == node.node_def
    assert (bound.message, bound.error_code, bound.__cause__) == ("it broke", 37, cause)
    assert raised.op is None, "the error of the kernel stays as it was"


def test_errors_survive_pickling() -> None:
    error = errors.NotFoundError(None, None, "no such file").at(FakeNode())
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.NotFoundError
    assert (copy.message, copy.op, str(copy)) == (error.message, error.op, str(error))


def test_no_error_is_its_own_cause():
    """Printed, such a one would never end, or be printed thrice."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.int32, [])
        gathered = tf.gather(tf.Variable([1.0, 2.0]).initial_value, x)
        read = tf.identity(tf.Variable(1.0))
        called = tf.py_func(lambda: 1 // 0, [], tf.int64)
        for fetch in (gathered, read, called):
            with pytest.raises(tf.errors.OpError) as caught:
                session.run(fetch, {x: 7})
            seen, error = set(), caught.value
            while error is not None:
                assert id(error) not in seen
                seen.add(id(error))
                error = error.__cause__ or (
                    None if error.__suppress_context__ else error.__context__
                )
