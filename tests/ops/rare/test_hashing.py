"""Hashes compared with published implementations, and buckets with TensorFlow's."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from tests.ops.text.test_strings import texts
from thalweg.ops.rare.hashing import fingerprint64, murmur64, siphash64


def sample(length: int) -> bytes:
    return bytes((i * 37 + 11) % 251 for i in range(length))


@pytest.mark.parametrize(
    ("length", "value"),
    [
        (0, 11160318154034397263),
        (1, 4787810249829893994),
        (3, 3979540680440595841),
        (4, 14708324829907283305),
        (7, 10810953559526984053),
        (8, 1081479215267182365),
        (15, 2740426556496838470),
        (16, 2161736752036300631),
        (17, 7337602293499926190),
        (31, 10608521235392382095),
        (32, 7714376564712875119),
        (33, 13647079065380818870),
        (48, 14016120554757486670),
        (64, 1907212410693397370),
        (65, 8220491543423646622),
        (127, 15644747946359685047),
        (128, 500231257745944714),
        (129, 9688664611621856643),
        (200, 18179907378325651003),
    ],
)
def test_fingerprint(length: int, value: int) -> None:
    assert fingerprint64(sample(length)) == value


def test_fingerprint_of_words() -> None:
    assert fingerprint64(b"a") == 12917804110809363939
    assert fingerprint64(b"d") == 4470636696479570465


def test_siphash_vectors() -> None:
    key = [0x0706050403020100, 0x0F0E0D0C0B0A0908]
    assert siphash64(key, bytes(range(15))) == 0xA129CA6149BE45E5
    assert siphash64(key, b"") == 0x726FDB47DD0E0E31
    assert siphash64([98765, 132], b"c") == 18100027895074076528


def test_murmur() -> None:
    assert murmur64(b"a") == 2996632905371535868
    assert murmur64(b"c") == 14899841994519054197


ROWS: dict[str, Any] = {
    "fast": (lambda x: tf.string_to_hash_bucket_fast(x, 10), [9, 2, 2, 5]),
    "strong": (lambda x: tf.string_to_hash_bucket_strong(x, 10, [98765, 132]), None),
    "old": (lambda x: tf.string_to_hash_bucket(x, 10), None),
    "one": (lambda x: tf.strings.to_hash_bucket_fast(x, 1), [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", ROWS)
def test_buckets(name: str) -> None:
    build, wanted = ROWS[name]
    expect = None if wanted is None else np.array(wanted)
    check(build, texts("a", "b", "c", "d"), expect=expect, gradient=False)


def test_bad_arguments() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(ValueError, match="at least 1"):
            tf.string_to_hash_bucket_fast("a", 0)
        node = tf.string_to_hash_bucket_strong("a", 10, [1])
        with pytest.raises(tf.errors.InvalidArgumentError, match="Key must have 2 elements"):
            session.run(node)
