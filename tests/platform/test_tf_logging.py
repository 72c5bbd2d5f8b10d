"""Logging: levels, the format of a line, and counted calls."""

import logging

import pytest

import thalweg as tf
from thalweg.platform import tf_logging


@pytest.fixture(autouse=True)
def verbosity():
    before = tf_logging.get_verbosity()
    yield
    tf_logging.set_verbosity(before)


def test_verbosity_decides_what_is_logged(caplog):
    tf_logging.set_verbosity(tf_logging.INFO)
    tf_logging.debug("hidden")
    tf_logging.info("step %d", 3)
    tf_logging.set_verbosity("ERROR")
    tf_logging.warn("hidden too")
    tf_logging.error("shown")
    assert tf_logging.get_verbosity() == tf_logging.ERROR
    assert caplog.messages == ["step 3", "shown"]


def test_every_level_has_its_function(caplog):
    tf_logging.set_verbosity(tf_logging.DEBUG)
    for function in ("debug", "info", "warn", "warning", "error", "fatal"):
        getattr(tf_logging, function)(function)
    tf_logging.log(tf_logging.INFO, "log")
    tf_logging.vlog(tf_logging.DEBUG, "vlog")
    tf_logging.TaskLevelStatusMessage("status")
    levels = {record.message: record.levelno for record in caplog.records}
    assert levels == {
        "debug": 10,
        "info": 20,
        "warn": 30,
        "warning": 30,
        "error": 40,
        "fatal": 50,
        "log": 20,
        "vlog": 10,
        "status": 40,
    }
    assert {record.filename for record in caplog.records} == {"test_tf_logging.py"}


def test_conditions_and_counts(caplog):
    tf_logging.set_verbosity(tf_logging.INFO)
    for i in range(5):
        tf_logging.log_if(tf_logging.INFO, "if %d", i == 4, i)
        tf_logging.log_every_n(tf_logging.INFO, "every %d", 2, i)
        tf_logging.log_first_n(tf_logging.INFO, "first %d", 2, i)
    assert caplog.messages == ["every 0", "first 0", "first 1", "every 2", "if 4", "every 4"]


def test_lines_go_to_standard_error_under_the_name_programs_know(capsys):
    console = tf_logging._Console()
    console.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    logger = logging.getLogger("tensorflow")
    logger.addHandler(console)
    tf_logging.warning("careful")
    tf_logging.flush()
    logger.removeHandler(console)
    assert "WARNING:thalweg:careful\n" in capsys.readouterr().err


def test_a_replaced_function_of_the_module_is_used(monkeypatch):
    said = []
    monkeypatch.setattr(tf.logging, "info", lambda text, *args: said.append(text % args))
    hook = tf.train.LoggingTensorHook({"x": "x:0"}, every_n_iter=1)
    with tf.Graph().as_default():
        x = tf.constant(7, name="x")
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            session.run(x)
    assert any("x = 7" in text for text in said)
