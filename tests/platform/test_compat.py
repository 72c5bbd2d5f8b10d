"""Text, bytes and number types."""

import pathlib

import numpy as np
import pytest

from thalweg.platform import compat


def test_text_and_bytes_convert_both_ways():
    assert compat.as_bytes("é") == b"\xc3\xa9"
    assert compat.as_bytes(b"raw") == b"raw"
    assert compat.as_text(b"\xc3\xa9") == compat.as_str("é") == "é"
    assert compat.as_text(b"\xe9", encoding="latin-1") == "é"


@pytest.mark.parametrize("convert", [compat.as_bytes, compat.as_text])
def test_other_types_are_refused(convert):
    with pytest.raises(TypeError, match="Expected binary or unicode string, got 3"):
        convert(3)


def test_as_str_any_takes_anything():
    assert compat.as_str_any(b"a") == "a"
    assert compat.as_str_any(1.5) == "1.5"


def test_paths_become_strings_and_other_values_stay():
    assert compat.path_to_str(pathlib.PurePosixPath("a/b")) == "a/b"
    assert compat.path_to_str("a") == "a"
    assert compat.path_to_str(None) is None


def test_number_groups():
    assert isinstance(np.int8(1), compat.integral_types)
    assert not isinstance(1.0, compat.integral_types)
    assert isinstance(np.float32(1), compat.real_types)
    assert not isinstance(1j, compat.real_types)
    assert isinstance(np.complex64(1), compat.complex_types)
    assert isinstance("a", compat.bytes_or_text_types)
