"""Every test of this folder has a new emulated GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thalweg.device.cuda import device as devices
from thalweg.device.cuda.discovery import find_driver


def _forget() -> None:
    find_driver.cache_clear()
    devices.reset_devices()


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("THALWEG_CUDA", "emulated")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    _forget()
    yield
    _forget()
