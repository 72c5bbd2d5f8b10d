"""What pytest loads in each process: the alias, and the names that left Python and NumPy.

Where TensorFlow 2 is tried, its compat.v1 stands under the old name, mended in the same places.
"""

import importlib
import os
import re
import sys

import pytest

import thalweg.alias
from thalweg.alias import legacy
from thalweg.alias.libraries.sources import PatchingFinder
from thalweg.alias.libraries.table import patches


def use_tensorflow() -> None:
    """Let `import tensorflow` give what version 2 has kept of version 1."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # else it takes the library's own Keras for its own
    version1 = importlib.import_module("tensorflow.compat.v1")
    version1.disable_v2_behavior()
    # TensorFlow 2.21 looks for its old layers here, where no release of this package has them.
    sys.modules["tf_keras.legacy_tf_layers"] = importlib.import_module(
        "tf_keras.src.legacy_tf_layers"
    )
    sys.modules["tensorflow"] = version1
    neutral = [patch for patch in patches() if "thalweg.alias" not in patch.new]
    sys.meta_path.insert(0, PatchingFinder(neutral))


legacy.restore()
if os.environ.get("LIBRARY_PEER"):
    use_tensorflow()
else:
    thalweg.alias.install(replace=True)
if package := os.environ.get("LIBRARY_PACKAGE"):
    importlib.import_module(package)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run nothing that is left out: some of it hangs."""
    pattern = os.environ.get("LIBRARY_LEFT_OUT")
    for item in items:
        if pattern and re.search(pattern, item.name):
            item.add_marker(pytest.mark.skip(reason="left out"))


def pytest_collection_finish() -> None:
    """Parse no flags of pytest's as the tests' own: their programs would do so first."""
    sys.argv[1:] = []
    if "absl.flags" in sys.modules:
        sys.modules["absl.flags"].FLAGS(sys.argv)
