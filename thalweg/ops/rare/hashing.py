"""Hashes of strings, and hash buckets.

`fingerprint64` (FarmHash) never changes, `siphash64` (SipHash-2-4) is keyed and resists chosen
inputs, `murmur64` is the oldest. All agree with TensorFlow, so that trained tables keep their
rows. They map bytes to an int in [0, 2**64).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.public import public

_MASK = (1 << 64) - 1

# FarmHash's constants: primes with well distributed bits.
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F


def fingerprint64(data: bytes) -> int:
    """FarmHash's Fingerprint64."""
    length = len(data)
    if length <= 16:
        return _farm_short(data)
    if length <= 32:
        return _farm_17_to_32(data)
    if length <= 64:
        return _farm_33_to_64(data)
    return _farm_long(data)


def _fetch64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fetch32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _rotate(value: int, shift: int) -> int:
    """Rotate a 64-bit word to the right."""
    return ((value >> shift) | (value << (64 - shift))) & _MASK


def _shift_mix(value: int) -> int:
    return value ^ (value >> 47)


def _mix16(u: int, v: int, multiplier: int) -> int:
    a = _shift_mix(((u ^ v) * multiplier) & _MASK)
    b = _shift_mix(((v ^ a) * multiplier) & _MASK)
    return (b * multiplier) & _MASK


def _farm_short(data: bytes) -> int:
    length = len(data)
    if length >= 8:
        multiplier = _K2 + length * 2
        a, b = _fetch64(data, 0) + _K2, _fetch64(data, length - 8)
        c = _rotate(b, 37) * multiplier + a
        d = (_rotate(a & _MASK, 25) + b) * multiplier
        return _mix16(c & _MASK, d & _MASK, multiplier)
    if length >= 4:
        multiplier = _K2 + length * 2
        a = length + (_fetch32(data, 0) << 3)
        return _mix16(a, _fetch32(data, length - 4), multiplier)
    if length == 0:
        return _K2
    y = data[0] + (data[length >> 1] << 8)
    z = length + (data[-1] << 2)
    return (_shift_mix(((y * _K2) ^ (z * _K0)) & _MASK) * _K2) & _MASK


def _farm_17_to_32(data: bytes) -> int:
    length = len(data)
    multiplier = _K2 + length * 2
    a, b = _fetch64(data, 0) * _K1, _fetch64(data, 8)
    c, d = _fetch64(data, length - 8) * multiplier, _fetch64(data, length - 16) * _K2
    first = _rotate((a + b) & _MASK, 43) + _rotate(c & _MASK, 30) + d
    second = a + _rotate((b + _K2) & _MASK, 18) + c
    return _mix16(first & _MASK, second & _MASK, multiplier)


def _farm_33_to_64(data: bytes) -> int:
    length = len(data)
    multiplier = _K2 + length * 2
    a, b = (_fetch64(data, 0) * _K2) & _MASK, _fetch64(data, 8)
    c = (_fetch64(data, length - 8) * multiplier) & _MASK
    d = (_fetch64(data, length - 16) * _K2) & _MASK
    y = (_rotate((a + b) & _MASK, 43) + _rotate(c, 30) + d) & _MASK
    z = _mix16(y, (a + _rotate((b + _K2) & _MASK, 18) + c) & _MASK, multiplier)
    e, f = (_fetch64(data, 16) * multiplier) & _MASK, _fetch64(data, 24)
    g = ((y + _fetch64(data, length - 32)) * multiplier) & _MASK
    h = ((z + _fetch64(data, length - 24)) * multiplier) & _MASK
    first = _rotate((e + f) & _MASK, 43) + _rotate(g, 30) + h
    second = e + _rotate((f + a) & _MASK, 18) + g
    return _mix16(first & _MASK, second & _MASK, multiplier)


def _weak_hash_32(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """A fast mix of 32 bytes with two seeds."""
    w, x, y, z = (_fetch64(data, at + offset) for offset in (0, 8, 16, 24))
    a = (a + w) & _MASK
    b = _rotate((b + a + z) & _MASK, 21)
    total = (a + x + y) & _MASK
    return (total + z) & _MASK, (b + _rotate(total, 44) + a) & _MASK


def _farm_long(data: bytes) -> int:
    x, y = 81, (81 * _K1 + 113) & _MASK
    z = (_shift_mix((y * _K2 + 113) & _MASK) * _K2) & _MASK
    v, w = (0, 0), (0, 0)
    x = (x * _K2 + _fetch64(data, 0)) & _MASK
    last = ((len(data) - 1) // 64) * 64
    for at in range(0, last, 64):
        x, y, z, v, w = _farm_block(data, at, (x, y, z, v, w), _K1, 1)
        z, x = x, z
    multiplier = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w = ((w[0] + ((len(data) - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x, y, z, v, w = _farm_block(data, len(data) - 64, (x, y, z, v, w), multiplier, 9)
    z, x = x, z
    return _mix16(
        (_mix16(v[0], w[0], multiplier) + _shift_mix(y) * _K0 + z) & _MASK,
        (_mix16(v[1], w[1], multiplier) + x) & _MASK,
        multiplier,
    )


_State = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def _farm_block(data: bytes, at: int, state: _State, multiplier: int, weight: int) -> _State:
    """Mix 64 bytes into the state; the last block weighs some words by 9."""
    x, y, z, v, w = state
    x = (_rotate((x + y + v[0] + _fetch64(data, at + 8)) & _MASK, 37) * multiplier) & _MASK
    y = (_rotate((y + v[1] + _fetch64(data, at + 48)) & _MASK, 42) * multiplier) & _MASK
    x ^= (w[1] * weight) & _MASK
    y = (y + v[0] * weight + _fetch64(data, at + 40)) & _MASK
    z = (_rotate((z + w[0]) & _MASK, 33) * multiplier) & _MASK
    v = _weak_hash_32(data, at, (v[1] * multiplier) & _MASK, (x + w[0]) & _MASK)
    w = _weak_hash_32(data, at + 32, (z + w[1]) & _MASK, (y + _fetch64(data, at + 16)) & _MASK)
    return x, y, z, v, w


def siphash64(key: Sequence[int], data: bytes) -> int:
    """SipHash-2-4 of `data` under a key of two 64-bit words."""
    k0, k1 = (int(word) & _MASK for word in key)
    state = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    whole = len(data) // 8 * 8
    words = [_fetch64(data, at) for at in range(0, whole, 8)]
    tail = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*words, tail):
        state[3] ^= word
        _sip_rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _sip_rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _sip_rounds(state: list[int], count: int) -> None:
    a, b, c, d = state
    for _ in range(count):
        a, c = (a + b) & _MASK, (c + d) & _MASK
        b, d = _rotate(b, 64 - 13) ^ a, _rotate(d, 64 - 16) ^ c
        a = _rotate(a, 32)
        c, a = (c + b) & _MASK, (a + d) & _MASK
        b, d = _rotate(b, 64 - 17) ^ c, _rotate(d, 64 - 21) ^ a
        c = _rotate(c, 32)
    state[:] = a, b, c, d


_MURMUR = 0xC6A4A7935BD1E995
_MURMUR_SEED = 0xDECAFCAFFE


def murmur64(data: bytes) -> int:
    """MurmurHash64A with TensorFlow's seed."""
    state = _MURMUR_SEED ^ (len(data) * _MURMUR) & _MASK
    whole = len(data) // 8 * 8
    for at in range(0, whole, 8):
        word = (_fetch64(data, at) * _MURMUR) & _MASK
        word = ((word ^ (word >> 47)) * _MURMUR) & _MASK
        state = ((state ^ word) * _MURMUR) & _MASK
    if whole < len(data):
        state = ((state ^ int.from_bytes(data[whole:], "little")) * _MURMUR) & _MASK
    state = ((state ^ (state >> 47)) * _MURMUR) & _MASK
    return state ^ (state >> 47)


class HashBucket(Op, abstract=True):
    """bucket = hash(string) mod num_buckets"""

    host_only = True
    not_differentiable = True
    num_buckets: int

    def shape(self, input: Tensor) -> TensorShape:
        if self.num_buckets < 1:
            raise ValueError(f"num_buckets must be at least 1, got {self.num_buckets}")
        return input.shape

    def buckets(self, function: Callable[[bytes], int], input: Any) -> Array:
        return text.numbers(lambda item: function(item) % self.num_buckets, input, np.int64)


class StringToHashBucketFast(HashBucket):
    """bucket = FarmHash fingerprint mod num_buckets"""

    signature = "input: string -> output: int64"

    def numpy(self, input: Array) -> Array:
        return self.buckets(fingerprint64, input)


@public("string_to_hash_bucket_fast", "strings.to_hash_bucket_fast")
def string_to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Tensor:
    """A bucket in [0, num_buckets) for each string, which never changes between versions."""
    return StringToHashBucketFast(num_buckets=num_buckets)(input, name=name)


class StringToHashBucketStrong(HashBucket):
    """bucket = SipHash under a key, mod num_buckets"""

    signature = "input: string -> output: int64"
    key: tuple[int, ...]

    def numpy(self, input: Array) -> Array:
        if len(self.key) != 2:
            raise errors.invalid(f"Key must have 2 elements, got {list(self.key)}")
        return self.buckets(lambda item: siphash64(self.key, item), input)


@public("string_to_hash_bucket_strong", "strings.to_hash_bucket_strong")
def string_to_hash_bucket_strong(
    input: Any, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """A bucket for each string, which cannot be predicted without `key` (two integers)."""
    return StringToHashBucketStrong(num_buckets=num_buckets, key=tuple(key))(input, name=name)


class StringToHashBucket(HashBucket):
    """bucket = MurmurHash mod num_buckets"""

    signature = "string_tensor: string -> output: int64"

    def numpy(self, string_tensor: Array) -> Array:
        return self.buckets(murmur64, string_tensor)


@public("string_to_hash_bucket", "strings.to_hash_bucket")
def string_to_hash_bucket(
    string_tensor: Any = None,
    num_buckets: int | None = None,
    name: str | None = None,
    input: Any = None,
) -> Tensor:
    """A bucket in [0, num_buckets) for each string."""
    if num_buckets is None:
        raise ValueError("num_buckets must be given")
    strings = string_tensor if input is None else input
    return StringToHashBucket(num_buckets=num_buckets)(strings, name=name)
