"""CRC-32C: known values, all code paths, and the polynomial multiple of folding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.platform import machine_code
from thalweg.platform.files import checksum
from thalweg.platform.files.checksum import MULTIPLE, POLYNOMIAL, crc32c, masked_crc32c

KNOWN = {
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
}


def by_bytes(data: bytes, value: int = 0) -> int:
    """The definition, a byte at a time."""
    table = [0] * 256
    for byte in range(256):
        entry = byte
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table[byte] = entry
    value ^= 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize("data", KNOWN)
def test_known_values(data: bytes) -> None:
    assert crc32c(data) == KNOWN[data]


SIZES = sorted(
    {
        size + difference
        for size in (16, 736, 2 * checksum._SPAN, *checksum._LEVELS.values(), 40_000)
        for difference in (-9, -1, 0, 1, 7, 63)
    }
)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_matches_the_definition(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == by_bytes(data)
    assert crc32c(data[5:], crc32c(data[:5])) == by_bytes(data)


@pytest.mark.parametrize("module", [checksum.by_products, checksum.by_additions])
def test_both_folding_methods_match_the_definition(module: Callable[[], str]) -> None:
    if module is checksum.by_products and not machine_code.has(*checksum._PCLMUL_FEATURES):
        pytest.skip("the processor does not multiply polynomials")
    function, copy = machine_code.functions(module(), checksum.SIGNATURES)
    for size in SIZES:
        data = np.random.default_rng(size).bytes(size)
        assert function(data, size, 0) == by_bytes(data), size
        assert function(data, size, 77) == by_bytes(data, 77), size
        target = np.zeros(size + 200, np.uint8)
        start = 64 + size % 61  # at all alignments
        assert copy(data, target.ctypes.data + start, size, 77) == by_bytes(data, 77), size
        assert target[start : start + size].tobytes() == data
        assert not target[:start].any()
        assert not target[start + size :].any()


@pytest.mark.parametrize("size", [0, 1, 63, 5000, (1 << 20) + 3])
def test_a_copy_returns_the_checksum(size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    target = np.zeros_like(source)
    assert checksum.copy_crc32c(source, target, 5) == crc32c(source.data, 5)
    np.testing.assert_array_equal(target, source)


@given(st.binary(max_size=200), st.integers(0, 30))
def test_a_checksum_can_be_continued(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


@pytest.mark.parametrize("size", [0, 3, 5000, 100_000])
def test_all_types_of_buffers(size: int) -> None:
    data = np.random.default_rng(1).bytes(size)
    array = np.frombuffer(data, np.uint8)
    for other in (
        bytearray(data),
        memoryview(data),
        memoryview(array),
        memoryview(bytearray(data)),
    ):
        assert crc32c(other) == crc32c(data)


def test_the_mask_is_a_rotation_and_a_sum() -> None:
    crc = crc32c(b"foo")
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert masked_crc32c(b"foo") == (rotated + 0xA282EAD8) % (1 << 32) != crc


def remainder(polynomial: int) -> int:
    while polynomial.bit_length() >= POLYNOMIAL.bit_length():
        polynomial ^= POLYNOMIAL << (polynomial.bit_length() - POLYNOMIAL.bit_length())
    return polynomial


def test_the_folding_polynomial_is_a_multiple() -> None:
    assert remainder(sum(1 << exponent for exponent in MULTIPLE)) == 0
    assert remainder(sum(1 << exponent * 512 for exponent in MULTIPLE)) == 0
    assert MULTIPLE[0] - MULTIPLE[1] >= checksum._UNROLL
    assert MULTIPLE[0] % checksum._UNROLL == 0
