"""Sealing: authenticated encryption (AEAD) of bulk connections.

The cipher is AES-128-GCM, for which processors have instructions; ZeroMQ's cipher has none and is
slower than a network. Keys are exchanged under Curve25519, which is as strong: longer ones would
only take longer. Each direction of a connection has a key of its own, used for this connection
only. The nonce is a counter of records: no nonce is used twice, and a record that is dropped,
replayed or out of order fails authentication.
"""

from __future__ import annotations

import secrets
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from thalweg.cluster.wire import WireError

TAG = 16  # bytes of the authentication tag, which follows the ciphertext
_KEY = 16  # bytes
_NONCE = Struct("<QI")


class Keys(NamedTuple):
    """The keys of both directions, in hexadecimal, to be sent over an encrypted connection."""

    outgoing: str
    incoming: str

    @staticmethod
    def new() -> Keys:
        """New random keys."""
        return Keys(secrets.token_hex(_KEY), secrets.token_hex(_KEY))

    @property
    def of_other_side(self) -> Keys:
        """The same keys as the other end uses them."""
        return Keys(self.incoming, self.outgoing)


class Seal:
    """One direction of a connection: encrypts, or decrypts, successive records."""

    def __init__(self, key: str) -> None:
        self._cipher = _cipher()(bytes.fromhex(key))
        self._count = 0

    def close(self, content: Any, associated_data: bytes, sealed: Any) -> None:
        """Encrypt the next record into `sealed`, and authenticate `associated_data` with it."""
        self._cipher.encrypt_into(self._nonce(), content, associated_data, sealed)

    def open(self, sealed: Any, associated_data: bytes, content: Any) -> None:
        """Decrypt the next record into `content`; raises WireError if authentication fails."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, associated_data, content)
        except Exception as error:  # of any type: the content must not be used
            raise WireError("sealed content was changed, or is out of its turn") from error

    def _nonce(self) -> bytes:
        self._count += 1
        return _NONCE.pack(self._count, 0)


def is_available() -> bool:
    """Whether the cipher is installed."""
    return _cipher() is not None


@cache
def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM if hasattr(AESGCM, "encrypt_into") else None
