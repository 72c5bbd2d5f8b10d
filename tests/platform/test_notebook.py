"""A notebook executed by a kernel, cell by cell: plan, progress bar and errors."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from thalweg.platform import notebook

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def outputs():
    """The outputs of the cells of the example, by the execution count of the cell."""
    executed = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as sockets:  # of files, not of a network
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
        NotebookClient(executed, config=config, timeout=100, startup_timeout=100).execute(
            env=environment
        )
    cells = [cell for cell in executed.cells if cell.cell_type == "code"]
    return {cell.execution_count: cell.outputs for cell in cells}


def error_in(outputs):
    (error,) = (output for output in outputs if output.output_type == "error")
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))


def test_a_plan_is_a_table(outputs):
    (plan,) = outputs[3]
    page = plan.data["text/html"]
    assert page.count("<tr") > 10 and "<details" in page
    assert "Cell In[2], line 2" in page, "the lines of a kernel are those of the cell"
    assert plan.data["text/plain"].startswith("step ")


def test_a_bar_shows_the_progress_of_training(outputs):
    shown = "".join(o.text for o in outputs[4] if o.output_type == "stream" and o.name == "stderr")
    assert "400/400" in shown and "Warning" not in shown


def test_an_error_at_construction_shows_only_its_line(outputs):
    text = error_in(outputs[5])
    assert "----> 2 tf.matmul(hidden, wide)" in text
    assert "(at Cell In[5], line 2)" in text
    assert "site-packages" not in text and f"{ROOT}/thalweg" not in text
    assert len(text.splitlines()) < 12


def test_an_error_of_a_step_names_the_cell_that_made_the_node(outputs):
    text = error_in(outputs[7])
    assert "Cell In[7], line 2" in text and "created at Cell In[6], line 2" in text
    assert f"{ROOT}/thalweg" not in text
    assert text.count("Matrix size-incompatible") == 1


def test_locations_outside_of_a_notebook_are_files():
    assert notebook.location("a.py", 3) == "a.py:3"
    assert not notebook.is_notebook()
