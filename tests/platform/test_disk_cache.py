"""The disk cache trusts only this user: modes, owners, links, forged and damaged entries."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from thalweg.platform import disk_cache
from thalweg.platform.disk_cache import Disk, disk_of_environment

NAME, OTHER = "ab" * 32, "cd" * 32
SOMEBODY = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def found() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]

    return found


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache with an entry."""
    Disk(tmp_path / "cache").write(NAME, b"content")
    return tmp_path / "cache"


def path_of(root: Path, name: str = NAME) -> Path:
    return root / name[:2] / f"{name[2:]}.o"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Generator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_files_and_folders_are_private(tmp_path: Path, warnings) -> None:
    root = tmp_path / "home" / ".cache" / "thalweg"
    Disk(root).write(NAME, b"content")
    made = [tmp_path / "home", *(tmp_path / "home").rglob("*")]
    assert len(made) == 6
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}
    assert Disk(root).read(NAME) == b"content"
    assert not warnings()


def refused(root: Path, warnings: Callable[[], list[str]], why: str) -> None:
    """Assert that nothing is read or written, and that one warning has the reason."""
    before = sorted(root.rglob("*"))
    for _ in range(3):
        disk = Disk(root)
        for _ in range(2):
            assert disk.read(NAME) is None
            disk.write(NAME, b"another")
            assert disk.read(NAME) is None
    assert sorted(root.rglob("*")) == before
    (warning,) = warnings()
    assert why in warning
    assert str(root) in warning
    assert "THALWEG_CACHE" in warning


@pytest.mark.parametrize("loose", [0o770, 0o707, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["", NAME[:2]])
def test_a_folder_writable_by_others_is_refused(filled, warnings, loose, place) -> None:
    (filled / place).chmod(loose)
    refused(filled, warnings, f"can be written by others (mode {loose:04o})")


def test_an_entry_writable_by_others_is_refused(filled, warnings) -> None:
    path_of(filled).chmod(0o660)
    refused(filled, warnings, "can be written by others (mode 0660)")


def test_a_secret_readable_by_others_is_refused(filled, warnings) -> None:
    (filled / "secret").chmod(0o640)
    refused(filled, warnings, "secret can be read by others")


def test_a_damaged_secret_is_refused(filled, warnings) -> None:
    (filled / "secret").write_bytes(b"short")
    refused(filled, warnings, "secret is damaged")


@needs_root
@pytest.mark.parametrize("place", ["", NAME[:2], "secret", f"{NAME[:2]}/{NAME[2:]}.o"])
def test_files_of_another_owner_are_refused(filled, warnings, place) -> None:
    os.chown(filled / place, SOMEBODY, SOMEBODY)
    refused(filled, warnings, f"belongs to user {SOMEBODY}")


@pytest.mark.parametrize("place", [NAME[:2], "secret", f"{NAME[:2]}/{NAME[2:]}.o"])
def test_a_symbolic_link_is_not_followed(filled, warnings, place) -> None:
    moved = filled.parent / "moved"
    (filled / place).rename(moved)
    (filled / place).symlink_to(moved)
    refused(filled, warnings, "is a symbolic link")


def test_a_pipe_does_not_block(filled, warnings) -> None:
    path_of(filled).unlink()
    os.mkfifo(path_of(filled), 0o600)
    refused(filled, warnings, "neither a file nor a folder")


def test_a_folder_may_be_a_link_of_the_users_own(filled, warnings) -> None:
    link = filled.parent / "link"
    link.symlink_to(filled)
    assert Disk(link).read(NAME) == b"content"
    Disk(link).write(OTHER, b"more")
    assert Disk(filled).read(OTHER) == b"more"
    assert not warnings()


@needs_root
def test_a_link_of_another_user_is_refused(filled, warnings) -> None:
    link = filled.parent / "link"
    link.symlink_to(filled)
    os.lchown(link, SOMEBODY, SOMEBODY)
    assert Disk(link).read(NAME) is None
    Disk(link).write(OTHER, b"more")
    assert Disk(filled).read(OTHER) is None
    assert len(warnings()) == 1


def test_a_shared_folder_has_a_part_for_each_user(tmp_path, warnings, monkeypatch) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path))
    for disk in (disk_of_environment(), disk_of_environment()):
        assert disk
        assert disk._root == tmp_path / f"thalweg-{os.geteuid()}"
        disk.write(NAME, b"content")
        assert disk.read(NAME) == b"content"
    assert mode(disk._root) == 0o700
    assert [path.name for path in tmp_path.iterdir()] == [disk._root.name]
    assert not warnings()


def test_a_part_of_a_shared_folder_that_is_a_link_is_refused(tmp_path, warnings, monkeypatch):
    """Another user may create one before this user's part exists."""
    (tmp_path / "private").mkdir(0o700)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    link = tmp_path / "shared" / f"thalweg-{os.geteuid()}"
    link.symlink_to(tmp_path / "private")
    if os.geteuid() != 0:
        pytest.skip("only root gives links to others")
    os.lchown(link, SOMEBODY, SOMEBODY)
    monkeypatch.setenv("THALWEG_CACHE", str(tmp_path / "shared"))
    disk = disk_of_environment()
    assert disk
    disk.write(NAME, b"content")
    assert not list((tmp_path / "private").iterdir())
    assert len(warnings()) == 1


def forged(content: bytes, name: str, secret: bytes) -> bytes:
    return disk_cache._signed(content, name, secret)


def plain(content: bytes) -> bytes:
    """An entry with a digest without a secret."""
    return b"thalweg object 2" + hashlib.sha256(content).digest() + content


@pytest.mark.parametrize(
    "forge",
    [
        lambda entry, secret: plain(b"content"),
        lambda entry, secret: forged(b"content", NAME, bytes(32)),
        lambda entry, secret: forged(b"content", OTHER, secret),
        lambda entry, secret: entry[:-1],
        lambda entry, secret: entry[:20],
        lambda entry, secret: entry + b"x",
        lambda entry, secret: entry[:16] + bytes([entry[16] ^ 1]) + entry[17:],
        lambda entry, secret: entry[:-1] + bytes([entry[-1] ^ 1]),
        lambda entry, secret: b"",
    ],
)
def test_an_entry_with_a_wrong_digest_is_missing(filled, warnings, forge) -> None:
    path, secret = path_of(filled), (filled / "secret").read_bytes()
    path.write_bytes(forge(path.read_bytes(), secret))
    assert Disk(filled).read(NAME) is None
    assert not path.exists()
    assert not warnings()
    Disk(filled).write(NAME, b"again")
    assert Disk(filled).read(NAME) == b"again"


def test_each_folder_has_its_own_secret(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        Disk(tmp_path / folder).write(NAME, b"content")
    path_of(tmp_path / "b").write_bytes(path_of(tmp_path / "a").read_bytes())
    assert Disk(tmp_path / "b").read(NAME) is None


def test_concurrent_writers_agree_on_a_secret(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def write(number: int) -> None:
        disk = Disk(tmp_path / "cache")
        together.wait()
        disk.write(f"{number:02x}" * 32, b"content")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disk = Disk(tmp_path / "cache")
    assert all(disk.read(f"{number:02x}" * 32) == b"content" for number in range(8))
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_a_file_system_without_hard_links_has_a_secret_too(tmp_path, monkeypatch) -> None:
    def link(*names: object, **folders: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", link)
    Disk(tmp_path / "cache").write(NAME, b"content")
    assert Disk(tmp_path / "cache").read(NAME) == b"content"


def test_a_folder_that_was_emptied_is_used_again(filled: Path) -> None:
    disk = Disk(filled)
    assert disk.read(NAME)
    for path in filled.rglob("*"):
        if path.is_file():
            path.unlink()
    assert disk.read(NAME) is None
    disk.write(NAME, b"again")
    assert Disk(filled).read(NAME) == b"again"


def test_a_sweep_ignores_foreign_files(filled: Path) -> None:
    """The folder may have other files, or links to them."""
    elsewhere = filled.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.o").write_bytes(bytes(1000))
    (filled / "ee").symlink_to(elsewhere)
    (filled / "de").mkdir()
    for path in (filled / "de" / "words.txt", filled / "notes.o"):
        path.write_bytes(bytes(1000))
    Disk(filled, limit=0).sweep()
    assert (elsewhere / "precious.o").exists()
    assert (filled / "de" / "words.txt").exists()
    assert (filled / "notes.o").exists()
    assert not path_of(filled).exists()
