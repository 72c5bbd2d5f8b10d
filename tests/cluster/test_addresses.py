"""Ports for the tasks of a cluster on one machine."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from thalweg.cluster import addresses
from thalweg.cluster.addresses import free_ports


def test_free_ports_are_distinct_and_can_be_bound():
    ports = free_ports(40)
    assert len(set(ports)) == 40
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


@pytest.mark.parametrize("ephemeral", ["32768\t60999", "10300\t65535"])
def test_no_free_port_is_one_that_a_connection_may_take(
    ephemeral: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "range").write_text(ephemeral)
    monkeypatch.setattr(addresses, "_EPHEMERAL_PORTS", tmp_path / "range")
    first = int(ephemeral.split()[0])
    assert all(10_240 <= port < first for port in free_ports(20))


def test_where_connections_may_take_all_ports_some_are_free_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "range").write_text("1024\t65535")
    monkeypatch.setattr(addresses, "_EPHEMERAL_PORTS", tmp_path / "range")
    assert len(set(free_ports(5))) == 5
    monkeypatch.setattr(addresses, "_EPHEMERAL_PORTS", tmp_path / "missing")
    assert len(set(free_ports(5))) == 5


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch):
    (only,) = free_ports(1)
    monkeypatch.setattr(addresses, "_FIRST_PORT", only)
    monkeypatch.setattr(addresses, "_first_ephemeral_port", lambda: only + 1)
    assert free_ports(1) == [only]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", only))
        assert only not in free_ports(2)


def test_a_host_of_another_machine_is_refused():
    with pytest.raises(OSError):
        free_ports(2, "192.0.2.1")
