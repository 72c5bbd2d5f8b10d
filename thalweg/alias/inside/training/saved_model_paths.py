"""Where the parts of a saved model lie: `tensorflow.python.saved_model.utils_impl`."""

from __future__ import annotations

import os
from typing import Any

from thalweg.alias import names

_constants = names.root().saved_model.constants


def get_variables_dir(export_dir: Any) -> str:
    """The folder of the variables."""
    return os.path.join(str(export_dir), _constants.VARIABLES_DIRECTORY)


def get_variables_path(export_dir: Any) -> str:
    """The beginning of the names of the variables' files."""
    return os.path.join(get_variables_dir(export_dir), _constants.VARIABLES_FILENAME)


def get_or_create_variables_dir(export_dir: Any) -> str:
    """The folder of the variables, made where it is not there."""
    folder = get_variables_dir(export_dir)
    os.makedirs(folder, exist_ok=True)
    return folder
