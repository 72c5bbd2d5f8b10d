"""A network of namespaces, one for each task: links that are cut, and lose and delay packets.

Where the kernel has netem, the links are pairs of veth that meet at a bridge, and `tc` makes them
bad. Where it has not, they are TAP devices that meet at a switch in this process, which drops and
delays frames itself. Needs root and the commands of iproute2 (`apt install iproute2`).
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

_PREFIX, _PORT = "10.77.0", 2222
_BRIDGE = "switch0"


class Quality(NamedTuple):
    """What a link does to packets."""

    delay: float  # seconds
    loss: float  # of all


USUAL = Quality(delay=0.001, loss=0.005)


class Fabric(Protocol):
    """What links meet at."""

    def link(self, number: int, namespace: str) -> None:
        """Give a namespace a device eth0 that is connected."""
        ...

    def set_quality(self, number: int, quality: Quality) -> None:
        """What a link does to packets from now on."""
        ...

    def close(self) -> None:
        """Take everything down."""
        ...


def why_not() -> str:
    """Why there can be no such network here; "" where there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"{' and '.join(missing)} missing: apt install iproute2" if missing else ""


class Network:
    """Namespaces with an address each, connected with each other and with nothing else."""

    def __init__(self, size: int) -> None:
        self._names = [f"chaos-{os.getpid()}-{number}" for number in range(size)]
        self.fabric: Fabric = Bridge() if has_netem() else Switch()
        try:
            for number, name in enumerate(self._names):
                self._add(number, name)
        except BaseException:
            self.close()
            raise

    def _add(self, number: int, name: str) -> None:
        run("ip", "netns", "add", name)
        self.fabric.link(number, name)
        inside(name, "ip", "link", "set", "lo", "up")
        inside(name, "ip", "addr", "add", f"{_PREFIX}.{number + 1}/24", "dev", "eth0")
        inside(name, "ip", "link", "set", "eth0", "up")
        self.fabric.set_quality(number, USUAL)

    def address(self, number: int) -> str:
        """Where the task of a namespace listens."""
        return f"{_PREFIX}.{number + 1}:{_PORT}"

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """A command line that runs another one in a namespace, as the same process."""
        return ["ip", "netns", "exec", self._names[number], *words]

    def cut(self, number: int) -> None:
        """Take a link down."""
        inside(self._names[number], "ip", "link", "set", "eth0", "down")

    def spoil(self, number: int, quality: Quality) -> None:
        """Make a link bad."""
        self.fabric.set_quality(number, quality)

    def mend(self, number: int) -> None:
        """Take a link up again, as good as it was."""
        inside(self._names[number], "ip", "link", "set", "eth0", "up")
        self.fabric.set_quality(number, USUAL)

    def close(self) -> None:
        """Leave nothing behind."""
        self.fabric.close()
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Bridge:
    """The kernel's: veth, a bridge in a namespace of its own, and netem on its ports."""

    def __init__(self) -> None:
        self._name = f"chaos-{os.getpid()}-bridge"
        run("ip", "netns", "add", self._name)
        inside(self._name, "ip", "link", "add", "name", _BRIDGE, "type", "bridge")
        inside(self._name, "ip", "link", "set", _BRIDGE, "up")

    def link(self, number: int, namespace: str) -> None:
        port = f"port{number}"
        peer = ("peer", "name", "eth0", "netns", namespace)
        inside(self._name, "ip", "link", "add", "name", port, "type", "veth", *peer)
        inside(self._name, "ip", "link", "set", port, "master", _BRIDGE, "up")
        inside(self._name, "tc", "qdisc", "add", "dev", port, "root", "netem")

    def set_quality(self, number: int, quality: Quality) -> None:
        rules = ("delay", f"{quality.delay * 1e3:g}ms", "loss", f"{quality.loss:.2%}")
        inside(self._name, "tc", "qdisc", "change", "dev", f"port{number}", "root", "netem", *rules)

    def close(self) -> None:
        subprocess.run(["ip", "netns", "del", self._name], check=False, capture_output=True)


_MAX_FRAME = 1 << 16
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


class Switch:
    """A switch between TAP devices, in a thread: frames go where their address says."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}  # by number
        self._qualities: dict[int, Quality] = {}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._order, self._random = count(), random.Random(0)
        self._epoll = select.epoll()
        self._is_closed = False
        self._thread = threading.Thread(target=self._forward, name="switch", daemon=True)
        self._thread.start()

    def link(self, number: int, namespace: str) -> None:
        name = f"tap{os.getpid() % 10**8}n{number}"
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
        run("ip", "link", "set", name, "address", mac_address(number))
        run("ip", "link", "set", name, "netns", namespace, "name", "eth0")
        self._ports[number], self._qualities[number] = file, USUAL
        self._epoll.register(file, select.EPOLLIN)

    def set_quality(self, number: int, quality: Quality) -> None:
        self._qualities[number] = quality

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        for file in self._ports.values():
            os.close(file)

    def _forward(self) -> None:
        while not self._is_closed:
            wait = self._due[0][0] - time.monotonic() if self._due else 0.1
            numbers = {file: number for number, file in self._ports.items()}
            for file, _ in self._epoll.poll(min(max(wait, 0), 0.1)):
                self._take(numbers.get(file), file)
            while self._due and self._due[0][0] <= time.monotonic():
                _, _, number, frame = heapq.heappop(self._due)
                _written(self._ports[number], frame)

    def _take(self, number: int | None, file: int) -> None:
        try:
            frame = os.read(file, _MAX_FRAME)
        except OSError:  # the link is down
            time.sleep(0.001)
            return
        if number is None:
            return
        is_for_all, target = frame[0] & 1, frame[5] - 1
        receivers = [port for port in self._ports if port != number] if is_for_all else [target]
        for receiver in receivers:
            if receiver in self._ports:
                self._pass(number, receiver, frame)

    def _pass(self, number: int, receiver: int, frame: bytes) -> None:
        """Both links of the way drop and delay."""
        delay = 0.0
        for each in (self._qualities[number], self._qualities[receiver]):
            if self._random.random() < each.loss:
                return
            delay += each.delay
        due = time.monotonic() + delay
        heapq.heappush(self._due, (due, next(self._order), receiver, frame))


def _written(file: int, frame: bytes) -> None:
    try:
        os.write(file, frame)
    except OSError:
        return  # the link is down, or its queue is full: a lost packet


def mac_address(number: int) -> str:
    """The address of a TAP device, by which the switch knows its port."""
    return f"02:00:00:00:00:{number + 1:02x}"


def has_netem() -> bool:
    """Whether the kernel delays and drops packets where it is told to."""
    name = f"chaos-{os.getpid()}-probe"
    run("ip", "netns", "add", name)
    try:
        tried = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem"]
        return subprocess.run(tried, check=False, capture_output=True).returncode == 0
    finally:
        run("ip", "netns", "del", name)


def inside(namespace: str, *words: str) -> None:
    """Run a command in a namespace."""
    run("ip", "netns", "exec", namespace, *words)


def run(*words: str) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
