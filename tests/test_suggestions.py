"""Names that do not exist: what errors say about them."""

from __future__ import annotations

import operator
import re
from types import ModuleType

import pytest

import thalweg as tf
from thalweg import absent, public, suggestions
from thalweg.functions import mode


def exists(name: str) -> bool:
    found: object = tf
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nn.rleu", "module 'thalweg.nn' has no attribute 'rleu'. Did you mean 'relu'?"),
        ("placeholdr", "Did you mean 'placeholder'?"),
        ("train.adamoptimizer", "Did you mean 'AdamOptimizer'?"),
        ("softmax", "Did you mean tf.nn.softmax?"),
        ("InvalidArgumentError", "Did you mean tf.errors.InvalidArgumentError?"),
        ("image.ssim", "TensorFlow's tf.image.ssim is not here."),
        ("autograph.to_graph", "use tf.cond and tf.while_loop"),
        ("contrib.all_reduce.build", "is not here; tf.device and tf.train"),
    ],
)
def test_unknown_names_say_what_to_use(name: str, text: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(text)) as error:
        exists_or_raise(name)
    assert error.value.name is None, "Python would add a guess of its own"


def exists_or_raise(name: str) -> None:
    found: object = tf
    for part in name.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize("name", ["zzzzzz", "_private", "nn.__wrapped__"])
def test_names_like_no_other_get_no_guess(name: str) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute '\w+'$"):
        exists_or_raise(name)


def test_internal_modules_can_be_imported_but_are_not_listed() -> None:
    from thalweg.nn import convolutions

    assert convolutions.__name__ == "thalweg.nn.convolutions"
    assert "convolutions" not in dir(tf.nn)
    assert "graph" not in dir(tf)
    assert {"nn", "train", "errors", "__version__", "__doc__"} <= {*dir(tf)}


@pytest.mark.parametrize("eager", [False, True])
def test_unknown_keywords_say_which_was_meant(eager: bool) -> None:
    with mode.eager_mode() if eager else tf.Graph().as_default():
        with pytest.raises(TypeError, match=r"'filtr'\. Did you mean 'filter'\?"):
            tf.nn.conv2d([[[[1.0]]]], filtr=1)
        with pytest.raises(TypeError, match=r"'activaton'\. Did you mean 'activation'\?"):
            tf.layers.dense([[1.0]], 3, activaton=None)
        with pytest.raises(TypeError, match=r"argument 'zzzz'$"):
            tf.matmul([[1.0]], [[1.0]], zzzz=1)


def test_other_type_errors_stay_as_they_are() -> None:
    error = TypeError("matmul() missing 1 required positional argument: 'b'")
    suggestions.name_keyword(error, tf.matmul)
    assert str(error) == "matmul() missing 1 required positional argument: 'b'"


def test_the_closest_name_is_the_most_similar_one() -> None:
    assert suggestions.closest("Dens", ["dense", "Dense", "density"]) in ("dense", "Dense")
    assert suggestions.closest("qqq", ["dense"]) is None


@pytest.mark.parametrize("name", sorted({*absent.INSTEAD, *absent.NOTHING}))
def test_names_said_to_be_absent_are(name: str) -> None:
    """A module may be here in part: then the row is for what is not."""
    assert name not in public.everything()
    if "pip install" not in absent.INSTEAD.get(name, ""):
        assert not exists(name) or isinstance(operator.attrgetter(name)(tf), ModuleType)


def test_what_is_recommended_exists() -> None:
    for text in absent.INSTEAD.values():
        for name in re.findall(r"tf\.([\w.]*\w)", text):
            assert exists(name), text
