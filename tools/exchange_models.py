"""Models both ways with TensorFlow: saved models and frozen graphs, with equal numbers.

`exchange.py` calls `write` on one side and `check` on the other. TensorFlow writes what Keras makes
(a CNN, an LSTM, MobileNetV2) and a module with state, branches, loops and a table; Thalweg writes a
CNN and an LSTM of TensorFlow 1. Each model comes with inputs and the outputs they gave.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_TOLERANCE = 2e-5


def write(side: str, folder: Path) -> None:
    """Write every model of a side."""
    (_write_keras if side == "tensorflow" else _write_thalweg)(folder)


def check(side: str, folder: Path) -> None:
    """Load every model that the other side wrote; the first difference is an error."""
    for model in sorted(folder.glob("*.saved")):
        name = model.name.removesuffix(".saved")
        for shown, found in _loaded(side, model, _arrays(folder, name, "x")):
            _compare(f"{name}, {shown}", found, _arrays(folder, name, "y"))
    for path in sorted(folder.glob("*.pb")):
        name, _, kind = path.name.removesuffix(".pb").partition(".")
        ends = path.with_suffix(".txt").read_text().split()
        found = _run_frozen(side, path, ends, _arrays(folder, name, "x"))
        _compare(f"{name}, frozen graph ({kind})", [found], _arrays(folder, name, "y"))


def _compare(shown: str, found: list[Any], wanted: list[Any]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=_TOLERANCE, rtol=_TOLERANCE)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))
    print(f"  {shown}: largest difference {worst:.1e}", flush=True)


def _arrays(folder: Path, name: str, kind: str) -> list[Any]:
    return [np.load(path) for path in sorted(folder.glob(f"{name}.{kind}*.npy"))]


def _keep(folder: Path, name: str, x: Any, y: Any) -> None:
    np.save(folder / f"{name}.x0.npy", x)
    np.save(folder / f"{name}.y0.npy", y)


# Loading


def _loaded(side: str, model: Path, inputs: list[Any]) -> list[tuple[str, list[Any]]]:
    """The outputs of a saved model, by each way to load it."""
    if side == "thalweg":
        import thalweg as tf

        return [("saved model", _run_session(tf, model, inputs))]
    import tensorflow as tf  # pyright: ignore[reportMissingImports] - in the other environment

    found = [("saved model, by a session", _run_session(tf.compat.v1, model, inputs))]
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    names = list(signature.structured_input_signature[1])
    given = {name: tf.constant(x) for name, x in zip(names, inputs, strict=True)}
    outputs = [value.numpy() for value in signature(**given).values()]
    return [*found, ("saved model, as a function", outputs)]


def _run_session(tf: Any, model: Path, inputs: list[Any]) -> list[Any]:
    with tf.Session(graph=tf.Graph()) as session:
        loader = tf.saved_model.loader if hasattr(tf.saved_model, "loader") else tf.saved_model
        meta = loader.load(session, ["serve"], str(model))
        signature = meta.signature_def["serving_default"]
        names = [info.name for _, info in sorted(signature.inputs.items())]
        outputs = [info.name for _, info in sorted(signature.outputs.items())]
        return session.run(outputs, dict(zip(names, inputs, strict=True)))


def _run_frozen(side: str, path: Path, ends: list[str], inputs: list[Any]) -> Any:
    if side == "thalweg":
        import thalweg as tf
    else:
        from tensorflow.compat import v1 as tf  # pyright: ignore[reportMissingImports] - as above
    graph_def = tf.GraphDef.FromString(path.read_bytes())
    with tf.Session(graph=tf.Graph()) as session:
        tf.import_graph_def(graph_def, name="")
        return session.run(ends[1], {ends[0]: inputs[0]})


# What TensorFlow writes


def _write_keras(folder: Path) -> None:
    import tensorflow as tf  # pyright: ignore[reportMissingImports] - in the other environment

    tf.keras.utils.set_random_seed(0)
    random = np.random.RandomState(0)
    layers = tf.keras.layers
    cnn = tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    _keep_keras(folder, "cnn", cnn, random.randn(4, 16, 16, 3).astype(np.float32))
    lstm = tf.keras.Sequential(
        [
            tf.keras.Input((12,)),
            layers.Embedding(50, 8),
            layers.LSTM(16, return_sequences=True),
            layers.LSTM(9),
            layers.Dense(3),
        ]
    )
    _keep_keras(folder, "lstm", lstm, random.randint(0, 50, (5, 12)).astype(np.int32))
    mobilenet = tf.keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classes=10)
    _keep_keras(folder, "mobilenet", mobilenet, random.rand(2, 96, 96, 3).astype(np.float32))
    _write_module(tf, folder)


def _keep_keras(folder: Path, name: str, model: Any, x: Any) -> None:
    """A model of Keras as a saved model and as frozen graphs with either kind of control flow."""
    import tensorflow as tf  # pyright: ignore[reportMissingImports] - in the other environment
    from tensorflow.python.framework.convert_to_constants import (  # pyright: ignore[reportMissingImports] - as above
        convert_variables_to_constants_v2 as frozen,
    )

    _keep(folder, name, x, np.asarray(model(x)))
    tf.saved_model.save(model, str(folder / f"{name}.saved"))
    function = tf.function(model).get_concrete_function(
        tf.TensorSpec([None, *x.shape[1:]], x.dtype)
    )
    for kind, lower in (("functional", False), ("primitives", True)):
        made = frozen(function, lower_control_flow=lower)
        content = made.graph.as_graph_def().SerializeToString()
        (folder / f"{name}.{kind}.pb").write_bytes(content)
        ends = f"{made.inputs[0].name} {made.outputs[0].name}"
        (folder / f"{name}.{kind}.txt").write_text(ends)


def _write_module(tf: Any, folder: Path) -> None:
    """State, a branch, a loop and a table."""

    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = tf.Variable([1.0, 2.0])
            self.count = tf.Variable(0.0)
            keys, values = tf.constant([3, 4], tf.int64), tf.constant([10.0, 20.0])
            table = tf.lookup.KeyValueTensorInitializer(keys, values)
            self.table = tf.lookup.StaticHashTable(table, -1.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def step(self, x: Any) -> Any:
            self.count.assign_add(1.0)
            y = x * tf.reduce_sum(self.v) if tf.reduce_sum(x) > 0 else -x
            for i in tf.range(3):
                y = y + tf.cast(i, tf.float32) * self.v[0]
            return y + self.count + self.table.lookup(tf.constant(4, tf.int64))

    module = Module()
    tf.saved_model.save(module, str(folder / "module.saved"), signatures=module.step)
    x = np.array([1.0, -3.0, 5.0], np.float32)
    _keep(folder, "module", x, module.step(x))


# What Thalweg writes


def _write_thalweg(folder: Path) -> None:
    import thalweg as tf

    for name, build, x in (
        ("cnn", _cnn, np.random.RandomState(1).rand(4, 16, 16, 3).astype(np.float32)),
        ("lstm", _lstm, np.random.RandomState(2).rand(5, 7, 6).astype(np.float32)),
        ("branch", _branch, np.array([1.0, -2.0], np.float32)),
    ):
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(3)
            inputs = tf.placeholder(tf.float32, [None, *x.shape[1:]], name="x")
            outputs = tf.identity(build(tf, inputs), name="y")
            _train(tf, outputs)
            session.run(tf.global_variables_initializer())
            _keep(folder, name, x, session.run(outputs, {inputs: x}))
            tf.saved_model.simple_save(
                session, str(folder / f"{name}.saved"), {"x": inputs}, {"y": outputs}
            )
            graph_def = tf.get_default_graph().as_graph_def()
            frozen = tf.graph_util.convert_variables_to_constants(session, graph_def, ["y"])
            (folder / f"{name}.plain.pb").write_bytes(
                tf.graph_util.portable(frozen).SerializeToString()
            )
            (folder / f"{name}.plain.txt").write_text("x:0 y:0")


def _train(tf: Any, outputs: Any) -> None:
    """What a program that trains has in its graph besides."""
    variables = tf.trainable_variables()
    if variables:
        tf.train.AdamOptimizer().minimize(tf.reduce_sum(outputs * outputs))


def _cnn(tf: Any, x: Any) -> Any:
    found = tf.layers.conv2d(x, 8, 3, activation=tf.nn.relu)
    found = tf.layers.batch_normalization(found)
    found = tf.layers.max_pooling2d(found, 2, 2)
    return tf.nn.softmax(tf.layers.dense(tf.layers.flatten(found), 10))


def _lstm(tf: Any, x: Any) -> Any:
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(9), x, dtype=tf.float32)
    return tf.layers.dense(outputs[:, -1], 3)


def _branch(tf: Any, x: Any) -> Any:
    scale = tf.Variable(2.0, use_resource=True)
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * scale, lambda: x - scale)
