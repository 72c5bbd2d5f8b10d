"""Content that nobody between two processes can read, change, drop or repeat.

AES-256-GCM: processors have instructions for it, and none for the cipher that ZeroMQ encrypts
messages with, which is slower than a network. Each direction of a connection has a key of its
own, used on this connection alone. The number of a piece is its nonce: no nonce serves twice, and a
piece that is missing, repeated or out of its turn does not open.
"""

from __future__ import annotations

import secrets
from functools import cache
from struct import Struct
from typing import Any, NamedTuple

from thalweg.cluster.wire import WireError

TAG = 16  # bytes by which a piece is longer when it is sealed
_KEY = 32  # bytes
_NONCE = Struct("<QI")


class Keys(NamedTuple):
    """Of both directions of a connection, as text that is told over one that is secret already."""

    outgoing: str
    incoming: str

    @staticmethod
    def new() -> Keys:
        """Keys that nobody has used."""
        return Keys(secrets.token_hex(_KEY), secrets.token_hex(_KEY))

    @property
    def of_other_side(self) -> Keys:
        """The same connection, from its other end."""
        return Keys(self.incoming, self.outgoing)


class Seal:
    """One direction of a connection: seals pieces, or opens them, one after the other."""

    def __init__(self, key: str) -> None:
        self._cipher = _cipher()(bytes.fromhex(key))
        self._count = 0

    def close(self, content: Any, about: bytes, sealed: Any) -> None:
        """Seal the next piece. What it is about is not in it, but must be the same to open it."""
        self._cipher.encrypt_into(self._nonce(), content, about, sealed)

    def open(self, sealed: Any, about: bytes, content: Any) -> None:
        """Open the next piece; a WireError where it is another."""
        try:
            self._cipher.decrypt_into(self._nonce(), sealed, about, content)
        except Exception as error:  # whatever the library says: nothing of it may be used
            raise WireError("sealed content was changed, or is out of its turn") from error

    def _nonce(self) -> bytes:
        self._count += 1
        return _NONCE.pack(self._count, 0)


def is_available() -> bool:
    """Whether this process has the cipher."""
    return _cipher() is not None


@cache
def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM if hasattr(AESGCM, "encrypt_into") else None
