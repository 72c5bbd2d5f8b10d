"""Turns the alias on and off: what `import tensorflow` means in this process."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Final

from thalweg.alias.finder import NAME, Finder
from thalweg.alias.libraries.sources import PatchingFinder
from thalweg.alias.libraries.table import patches
from thalweg.public import public

VERSIONS: Final = ("0.12", "1.15")
_EARLY: Final = "thalweg.alias.early"  # it stands on all public names

_finders: Final[list[Finder | PatchingFinder]] = []


@public("alias.install")
def install(*, replace: bool = False, version: str = "1.15") -> None:
    """Let `import tensorflow` give Thalweg, with all that programs import from below it.

    Call it before the first `import tensorflow`. A second call does nothing.

    Args:
        replace: whether to stand in for a TensorFlow that is installed; without it that is an
            error, so that no program gets another library than it expects.
        version: whose meaning of names holds where versions differ: "1.15", or "0.12".

    Raises:
        ImportError: if TensorFlow is installed and `replace` is false, or is imported already.
        ValueError: for another version.

    Example:
        >>> tf.alias.install()
        >>> import tensorflow.compat.v1
        >>> from tensorflow.python.framework import ops
        >>> tensorflow.compat.v1.constant is ops.convert_to_tensor, ops.Graph is tf.Graph
        (False, True)
        >>> tf.alias.uninstall()
    """
    if version not in VERSIONS:
        raise ValueError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
    if _finders:
        return
    if NAME in sys.modules:
        raise ImportError("TensorFlow is imported already: call thalweg.alias.install() before.")
    if not replace and importlib.util.find_spec(NAME) is not None:
        raise ImportError(
            f"{_version()} is installed, and Thalweg does not take its place unasked: call "
            "thalweg.alias.install(replace=True), or `thalweg run --replace`."
        )
    _finders.extend([Finder(), PatchingFinder(patches())])
    sys.meta_path[:0] = _finders
    if version == "0.12":
        importlib.import_module(_EARLY).install()


@public("alias.uninstall")
def uninstall() -> None:
    """End what `install` began; modules that were imported meanwhile keep what they have.

    Example:
        >>> tf.alias.uninstall()
        >>> tf.alias.installed()
        False
    """
    while _finders:
        sys.meta_path.remove(_finders.pop())
    if _EARLY in sys.modules:
        sys.modules[_EARLY].uninstall()
    for name in [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]:
        del sys.modules[name]


@public("alias.installed")
def installed() -> bool:
    """Whether `import tensorflow` gives Thalweg.

    Returns:
        True between `install` and `uninstall`.

    Example:
        >>> tf.alias.installed()
        False
    """
    return bool(_finders)


def _version() -> str:
    from importlib import metadata  # slow to import, and for an error alone

    try:
        return f"TensorFlow {metadata.version(NAME)}"
    except metadata.PackageNotFoundError:
        return "A TensorFlow"
