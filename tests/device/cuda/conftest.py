"""Every test of this folder has one emulated GPU, which no other test has used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thalweg.device.cuda import device as devices
from thalweg.device.cuda.discovery import found_driver


def _forget() -> None:
    found_driver.cache_clear()
    devices.forget_devices()


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("THALWEG_CUDA", "emulated")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _forget()
    yield
    _forget()
