"""A test file as a program: its entry point, its folders, and which devices it may count on."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
import unittest
from typing import NoReturn

from thalweg.platform import app
from thalweg.public import public
from thalweg.runtime.engine import LocalDevice, list_local_devices
from thalweg.testing import benchmark


@public("test.main")
def main(argv: list[str] | None = None) -> NoReturn:
    """Run the tests of the main module and exit, as `unittest.main` does.

    Args:
        argv: the command line; by default `sys.argv`. `--benchmarks=<regex>` runs benchmarks.

    Example:
        >>> class AddTest(tf.test.TestCase):
        ...     def test_add(self):
        ...         with self.test_session():
        ...             self.assertAllEqual(tf.add([1], [2]).eval(), [3])
        >>> if __name__ == "__main__":
        ...     tf.test.main()
    """
    app.run(_run, argv)


def _run(argv: list[str]) -> None:
    wanted = [a.partition("=")[2] for a in argv if a.startswith("--benchmarks=")]
    if wanted:
        benchmark.run_benchmarks(wanted[0])
    else:
        unittest.main(argv=argv)


@public("test.get_temp_dir")
@functools.cache
def get_temp_dir() -> str:
    """A folder for the files of tests: `TEST_TMPDIR`, or one that goes when the process ends.

    Returns:
        The path.

    Example:
        >>> tf.gfile.IsDirectory(tf.test.get_temp_dir())
        True
    """
    given = os.environ.get("TEST_TMPDIR")
    if given:
        os.makedirs(given, exist_ok=True)
        return given
    result = tempfile.mkdtemp(prefix=_program_name())
    atexit.register(shutil.rmtree, result, ignore_errors=True)
    return result


def fresh_folder() -> str:
    """A new folder inside `get_temp_dir()`."""
    return tempfile.mkdtemp(dir=get_temp_dir())


def _program_name() -> str:
    return os.path.splitext(os.path.basename(sys.argv[0] or "test"))[0]


@public("test.test_src_dir_path")
def test_src_dir_path(relative_path: str) -> str:
    """The place of a test's data: below TEST_SRCDIR where that is set, else below the main file."""
    root = os.environ.get("TEST_SRCDIR") or os.path.dirname(os.path.abspath(sys.argv[0]))
    return os.path.join(root, relative_path)


@public("test.gpu_device_name")
def gpu_device_name() -> str:
    """The name of the first GPU a session sees, "" if there is none."""
    return next((gpu.name for gpu in _gpus()), "")


def _gpus() -> list[LocalDevice]:
    return [device for device in list_local_devices() if device.device_type == "GPU"]


@public("test.is_gpu_available")
def is_gpu_available(
    cuda_only: bool = False, min_cuda_compute_capability: tuple[int, int] | None = None
) -> bool:
    """Whether a session sees a GPU.

    Args:
        cuda_only: taken for old programs: all GPUs are CUDA's.
        min_cuda_compute_capability: the least compute capability that counts, as (major, minor).

    Returns:
        True or False.

    Example:
        >>> tf.test.is_gpu_available() in (True, False)
        True
    """
    major, minor = min_cuda_compute_capability or (0, 0)
    return any(gpu.capability >= 10 * major + minor for gpu in _gpus())


@public("test.is_built_with_cuda", "test.IsBuiltWithCuda")
def is_built_with_cuda() -> bool:
    """Whether there is a CUDA driver with a GPU: kernels are compiled when they are needed.

    Returns:
        True or False.

    Example:
        >>> tf.test.is_built_with_cuda() in (True, False)
        True
    """
    return bool(_gpus())
