"""The embedding projector of TensorBoard: where it finds the embeddings of a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from thalweg import protos
from thalweg.platform.files import gfile
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.summary.writer import FileWriter

FILE_NAME = "projector_config.pbtxt"


@public("contrib.tensorboard.plugins.projector.visualize_embeddings")
def visualize_embeddings(summary_writer: FileWriter, config: protos.ProjectorConfig) -> None:
    """Write a ProjectorConfig to the folder of a FileWriter."""
    folder = summary_writer.get_logdir()
    if not folder:
        raise ValueError("The summary writer has no folder")
    with gfile.GFile(os.path.join(folder, FILE_NAME), "w") as file:
        file.write(str(config))
