"""Authentication and encryption: all tasks of a cluster share one key.

The key is the secret half of a CURVE key pair. Both sides of a connection prove that they have it,
and the connection is encrypted and protected against replay. On one machine, the processes of a
user share a key in the user's private folder; for several machines, create one with `new_key` and
give it to all tasks.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thalweg.cluster.transport.loop import Loop
from thalweg.cluster.transport.sockets import zeromq
from thalweg.platform import tf_logging
from thalweg.platform.private_files import make_folder, make_secret, read_secret, user_folder
from thalweg.public import public

if TYPE_CHECKING:
    import zmq

_ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ sends authentication requests (ZAP, RFC 27)
_ZAP_VERSION = b"1.0"
_DOMAIN = b"thalweg"
_KEY_FILE, _KEY_BYTES = "cluster-key", 32
_KEY_LETTERS = 40  # characters of a key in Z85, ZeroMQ's base 85


@public("cluster.new_key")
def new_key() -> str:
    """A new secret key for a cluster, to be shared by its tasks only.

    Returns:
        A string of 40 characters. Processes read it from the environment variable
        THALWEG_CLUSTER_KEY, which holds the key or the path of a file that contains it.

    Example:
        >>> len(tf.cluster.new_key())
        40
    """
    return zeromq().curve_keypair()[1].decode()


@dataclass(frozen=True)
class Security:
    """The key of a cluster.

    Args:
        key: 40 characters, as `new_key` returns them; "" for no security at all.
    """

    key: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.key and len(self.key) != _KEY_LETTERS:
            raise ValueError(f"A cluster's key has {_KEY_LETTERS} letters, not {len(self.key)}")

    @staticmethod
    def none() -> Security:
        """No key: no authentication and no encryption. For networks that only trusted processes
        can reach."""
        return Security("")

    @staticmethod
    def of_user() -> Security:
        """The key shared by all processes of this user on this machine, created if necessary."""
        root = user_folder()
        make_folder(str(root))
        secret = read_secret(root, _KEY_FILE, _KEY_BYTES)
        secret = secret or make_secret(root, _KEY_FILE, _KEY_BYTES)
        return Security(_z85().encode(secret).decode())

    @staticmethod
    def of_process() -> Security:
        """The key in the environment variable THALWEG_CLUSTER_KEY, or else the user's. The variable
        holds the key, the path of a file that contains it, or "none" for no security."""
        setting = os.environ.get("THALWEG_CLUSTER_KEY", "")
        if not setting:
            return Security.of_user()
        if setting == "none":
            return Security.none()
        if len(setting) == _KEY_LETTERS and not os.path.exists(setting):
            return Security(setting)
        with open(setting, encoding="ascii") as file:
            return Security(file.read().strip())

    @property
    def is_on(self) -> bool:
        """Whether there is a key."""
        return bool(self.key)

    def warn_if_exposed(self, host: str) -> None:
        """Log a warning if a port without a key is reachable from the network."""
        if not self.is_on and not _is_loopback(host):
            tf_logging.warning(
                "This task listens at %s without a key: everybody who reaches the port can run "
                "code here.",
                host,
            )

    def protect(self, socket: zmq.Socket[bytes], is_server: bool) -> None:
        """Configure CURVE on a socket, before it is bound or connected."""
        if not self.is_on:
            return
        zmq, public = zeromq(), self._public
        socket.set(zmq.CURVE_SECRETKEY, self.key.encode())
        socket.set(zmq.CURVE_PUBLICKEY, public)
        if is_server:
            socket.set(zmq.CURVE_SERVER, 1)
            socket.set(zmq.ZAP_DOMAIN, _DOMAIN)
        else:
            socket.set(zmq.CURVE_SERVERKEY, public)

    def admits(self, credentials: bytes) -> bool:
        """Whether the public key that a client has authenticated with is the cluster's."""
        return credentials == _z85().decode(self._public)

    @property
    def _public(self) -> bytes:
        return zeromq().curve_public(self.key.encode())


def _z85():  # the return type is inferred, as in `zeromq`
    """The module of ZeroMQ's text encoding of keys."""
    zeromq()
    from zmq.utils import z85

    return z85


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ZapHandler:
    """The ZAP handler: answers ZeroMQ's authentication requests; on the I/O thread."""

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[zmq.Socket[bytes]],
        security: Security,
        refuse: Callable[[str], None],
    ) -> None:
        self._zmq = zeromq()
        self._loop, self._security, self._refuse = loop, security, refuse
        self._socket = context.socket(self._zmq.REP)
        self._socket.bind(_ZAP)
        self._file = int(self._socket.get(self._zmq.FD))
        loop.watch(self._file, self._answer_all)
        loop.call(self._answer_all)  # the descriptor is edge-triggered: read once to arm it

    def close(self) -> None:
        """Stop answering: further clients are not admitted."""
        self._loop.unwatch(self._file)
        self._socket.close(0)

    def _answer_all(self) -> None:
        while not self._socket.closed:
            try:
                frames = self._socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            self._socket.send_multipart(self._answer(frames))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        match frames:
            case [_, request, _, _, _, b"CURVE", key] if self._security.admits(key):
                return [_ZAP_VERSION, request, b"200", b"OK", b"", b""]
            case _:
                self._refuse("a process with another key")
                return [_ZAP_VERSION, *frames[1:2], b"400", b"another key", b"", b""]
