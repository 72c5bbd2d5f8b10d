"""The backend tests of the package `onnx`, run on Thalweg.

Usage: conformance_onnx.py [--only TEXT] [--markdown FILE]. Runs the node, simple and light model
tests and prints how many passed; failures are grouped by what was said. Inputs of floating point
are fed to placeholders, unless they decide shapes; all others are constants of the graph.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import thalweg as tf


class Case(NamedTuple):
    """A test: a model, and inputs with the outputs they must give."""

    name: str
    kind: str
    version: int
    model: Any
    runs: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def cases(chosen: str = "") -> Iterator[Case]:
    """The tests of the package, of one kind or all."""
    import onnx
    from onnx.backend.test.loader import load_model_tests

    for kind in ("node", "simple", "pytorch-converted", "pytorch-operator"):
        if not kind.startswith(chosen):
            continue
        for test in load_model_tests(kind=kind):
            model = test.model or onnx.load(str(Path(test.model_dir, "model.onnx")))
            runs = test.data_sets or list(_stored(Path(test.model_dir), model))
            versions = {each.domain: each.version for each in model.opset_import}
            version = versions.get("", versions.get("ai.onnx", 0))
            yield Case(test.name, kind, version, model, runs, test.rtol, test.atol)
    if "light".startswith(chosen):
        yield from light()


def light() -> Iterator[Case]:
    """The large networks whose weights are constants, and which the package has itself."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.loader import DATA_DIR

    for path in sorted(Path(DATA_DIR, "light").glob("*.onnx")):
        model = onnx.load(str(path))
        held = {tensor.name for tensor in model.graph.initializer}
        inputs = []
        for info in model.graph.input:
            if info.name not in held:
                sizes = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
                count = int(np.prod(sizes))
                inputs.append((np.arange(count).reshape(sizes) / count).astype(np.float32))
        stored = path.with_name(f"{path.stem}_output_0.pb").read_bytes()
        wanted = [numpy_helper.to_array(onnx.TensorProto.FromString(stored))]
        yield Case(path.stem, "light", 0, model, [(inputs, wanted)], 1e-3, 1e-5)


def _stored(folder: Path, model: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        sides: list[list[Any]] = []
        for side, infos in (("input", model.graph.input), ("output", model.graph.output)):
            paths = [data / f"{side}_{k}.pb" for k in range(len(infos))]
            pairs = zip(paths, infos, strict=True)
            sides.append([_value(path, info) for path, info in pairs if path.exists()])
        yield sides[0], sides[1]


def _value(path: Path, info: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    content = path.read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if info.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def run(case: Case) -> str | None:
    """What is wrong, or None."""
    try:
        model = tf.onnx.load(case.model)
        for inputs, wanted in case.runs:
            try:
                _check(case, model, inputs, wanted, feeds_floats=True)
            except NotImplementedError:  # what decides shapes has to be known
                _check(case, model, inputs, wanted, feeds_floats=False)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _check(
    case: Case, model: Any, inputs: list[Any], wanted: list[Any], feeds_floats: bool
) -> None:
    everything = [info.name for info in case.model.graph.input]
    names = list(model.inputs) if len(inputs) == len(model.inputs) else everything
    with tf.Graph().as_default(), tf.Session() as session:
        feeds: dict[Any, Any] = {}
        given: dict[str, Any] = {}
        for name, stored in zip(names, inputs, strict=False):
            value = _array(stored)
            given[name] = _fed(value, feeds) if feeds_floats else value
        found = model(**{name: given.get(name) for name in {*model.inputs, *given}})
        found = [found] if len(wanted) == 1 and not _is_many(found, wanted) else list(found)
        for mine, theirs in zip(found, wanted, strict=True):
            _compare(_run(session, mine, feeds), _array(theirs), case)


def _is_many(found: Any, wanted: list[Any]) -> bool:
    return isinstance(found, list) and not isinstance(wanted[0], list)


def _array(value: Any) -> Any:
    """A tensor of a message: elements that NumPy has no name for come as such."""
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return [_array(each) for each in value] if isinstance(value, list) else value


def _fed(value: Any, feeds: dict[Any, Any]) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        holder = tf.placeholder(value.dtype, value.shape)
        feeds[holder] = value
        return holder
    return value


def _run(session: Any, value: Any, feeds: dict[Any, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [_run(session, each, feeds) for each in value]
    return None if value is None else session.run(value, feeds)


def _compare(mine: Any, theirs: Any, case: Case) -> None:
    if isinstance(theirs, list):
        assert len(mine) == len(theirs), f"{len(mine)} elements, not {len(theirs)}"
        for one, other in zip(mine, theirs, strict=True):
            _compare(one, other, case)
        return
    theirs, mine = np.asarray(theirs), np.asarray(mine)
    assert mine.shape == theirs.shape, f"shape {mine.shape}, not {theirs.shape}"
    if theirs.dtype.kind in "OU":
        shown = [each.decode() if isinstance(each, bytes) else each for each in mine.flat]
        assert shown == [str(each) for each in theirs.flat], "other text"
        return
    assert mine.dtype == theirs.dtype, f"dtype {mine.dtype}, not {theirs.dtype}"
    kind = np.float64 if theirs.dtype.kind not in "biuc" else theirs.dtype
    np.testing.assert_allclose(
        mine.astype(kind), theirs.astype(kind), case.rtol, max(case.atol, 1e-6)
    )


# What is exported, in onnxruntime


def _models() -> Iterator[tuple[str, Any, Any]]:
    """Names, functions of a placeholder, and inputs."""
    random = np.random.RandomState(0)
    image = random.rand(2, 16, 16, 3).astype(np.float32)
    yield (
        "dense layers",
        lambda x: tf.layers.dense(tf.nn.relu(tf.layers.dense(x, 8)), 3),
        image[:, 0],
    )
    yield "CNN", _cnn, image
    yield "separable convolutions", _separable, image
    yield "attention", _attention, random.rand(2, 5, 8).astype(np.float32)


def _dense(x: Any) -> Any:
    return tf.layers.dense(tf.layers.dense(x, 8, activation=tf.nn.relu), 3)


def _cnn(x: Any) -> Any:
    found = tf.layers.batch_normalization(tf.layers.conv2d(x, 8, 3, 2, "same"))
    found = tf.layers.max_pooling2d(tf.nn.relu6(found), 3, 2, "same")
    return tf.nn.softmax(tf.layers.dense(tf.layers.flatten(found), 10))


def _separable(x: Any) -> Any:
    found = tf.layers.separable_conv2d(x, 8, 3, padding="same", activation=tf.nn.elu)
    return tf.reduce_mean(tf.layers.average_pooling2d(found, 2, 2), [1, 2])


def _attention(x: Any) -> Any:
    query, key, value = (tf.layers.dense(x, 8) for _ in range(3))
    weights = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / 8.0**0.5)
    found = x + tf.matmul(weights, value)
    mean, variance = tf.nn.moments(found, [-1], keep_dims=True)
    return (found - mean) * tf.rsqrt(variance + 1e-6)


def runtime_rows() -> Iterator[tuple[str, float]]:
    """For each exported model, the largest difference to what onnxruntime gives."""
    import onnxruntime

    for name, build, value in _models():
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            x = tf.placeholder(tf.float32, [None, *value.shape[1:]], name="x")
            y = tf.identity(build(x), name="y")
            session.run(tf.global_variables_initializer())
            wanted = session.run(y, {x: value})
            content = tf.onnx.export(y).SerializeToString()
        theirs = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (found,) = theirs.run(None, {"x": value})
        yield name, float(np.abs(found - wanted).max())


class Counts:
    """How many tests passed, by group, and why others did not."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.faults: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, case: Case, fault: str | None) -> None:
        """Note a test."""
        group = case.kind
        if case.kind == "node":
            group = f"node, operator sets {'up to 17' if case.version <= 17 else 'after 17'}"
        self.total[group] += 1
        self.passed[group] += fault is None
        if fault is not None:
            self.faults[_reason(fault)].append(case.name)

    def rows(self) -> Iterator[str]:
        """The counts of each group."""
        for group, total in self.total.items():
            passed = self.passed[group]
            yield f"| {group} | {passed} | {total} | {100 * passed / total:.1f}% |"

    def reasons(self) -> Iterator[str]:
        """Why tests did not pass, the most frequent first."""
        for reason, names in sorted(self.faults.items(), key=lambda item: -len(item[1])):
            shown = ", ".join(f"`{name}`" for name in names[:3])
            yield f"| {len(names)} | {reason} | {shown}{', …' if len(names) > 3 else ''} |"


def _reason(fault: str) -> str:
    """A fault without what is different in each test."""
    unknown = re.search(r"operators that are not here: (.*)", fault)
    if unknown is not None:
        names = sorted(set(re.findall(r"([\w.]+) \(version", unknown[1])))
        return f"no such operator: {', '.join(names)}"
    if fault.strip() == "AssertionError:":
        return "other numbers than the test has"
    fault = fault.partition(" (at ")[0]
    cut = re.sub(r"ONNX node '[^']*' \((\w+)[^)]*\)", r"\1", fault)
    return cut.replace("|", "\\|").replace("\n", " ")[:140]


_PAGE = """# ONNX: the backend tests

`make conformance-onnx` runs the backend tests of the package `onnx` {version} on what
`tf.onnx.load` makes of their models, and writes this page. Inputs of floating point are fed to
placeholders, unless they decide shapes; all others are constants of the graph.
[Models in and out](models.md) says how models are loaded.

| tests | passed | of | share |
|---|---|---|---|
{rows}

## What did not pass

| tests | reason | among them |
|---|---|---|
{reasons}

## Exported models in onnxruntime

The same inputs to the graph here and to the exported model in onnxruntime:

| model | largest difference |
|---|---|
{runtime}
"""


def main() -> int:
    """Run the tests, print the counts; write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="a part of the tests' names")
    parser.add_argument("--kind", default="", help="node, simple, light, …")
    parser.add_argument("--newest", type=int, default=99, help="the newest operator set")
    parser.add_argument("--markdown", help="the page to write")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = Counts()
    for case in cases(given.kind):
        if given.only in case.name and case.version <= given.newest:
            counts.add(case, run(case))
    print("\n".join([*counts.reasons(), *counts.rows()]))
    if given.markdown:
        import onnx

        page = _PAGE.format(
            version=onnx.__version__,
            rows="\n".join(counts.rows()),
            reasons="\n".join(counts.reasons()),
            runtime="\n".join(f"| {name} | {worst:.1e} |" for name, worst in runtime_rows()),
        )
        Path(given.markdown).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
