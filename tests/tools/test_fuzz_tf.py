"""The parts of the differential fuzzer, without TensorFlow."""

import argparse
import io
import sys
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.inspect.plan_walk import PlannedRegion
from thalweg.runtime import engine
from tools.fuzz_tf import __main__ as command
from tools.fuzz_tf import compare, specs, values, wire
from tools.fuzz_tf.case import Case, program
from tools.fuzz_tf.draw import SPECS, draw_case
from tools.fuzz_tf.known import TABLE, Known
from tools.fuzz_tf.process import Pair, Process
from tools.fuzz_tf.report import Report
from tools.fuzz_tf.worker import Thalweg, execute

specs.load()


def drawn(name: str, number: int) -> Case:
    return draw_case(SPECS[name], name, number, np.random.default_rng([7, number]))


def case(*arrays: Any, **more: Any) -> Case:
    code = more.pop("code", ("tf.identity(x0)",))
    return Case(0, "identity", code, tuple(np.asarray(a) for a in arrays), **more)


def answer(*arrays: Any, **more: Any) -> dict[str, Any]:
    made = [np.asarray(a) for a in arrays]
    static = more.pop("static", [list(a.shape) for a in made])
    return {
        "kind": "values",
        "arrays": made,
        "static": static,
        "dtypes": [a.dtype.name for a in made],
        **more,
    }


def kinds(ours: dict[str, Any], theirs: dict[str, Any], **more: Any) -> list[str]:
    return [kind for kind, _ in compare.disagreements(case(1.0, **more), ours, theirs)]


def test_messages_keep_every_dtype_and_the_zero_bytes_of_strings() -> None:
    rng = np.random.default_rng(1)
    kept = [
        values.array(rng, d, (2, 3), "normal")
        for d in (*values.FLOATS, *values.INTS, *values.COMPLEX)
    ]
    kept += [np.zeros((0, 4), np.float32), np.array(True), np.array([b"a\x00", b"\xff"], object)]
    data = wire.encode({"kind": "case", "arrays": kept})
    back = wire.read(io.BytesIO(data).read)["arrays"]
    for one, two in zip(kept, back, strict=True):
        assert one.dtype == two.dtype and one.shape == two.shape
        assert one.tolist() == two.tolist()


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_spec_draws_the_same_case_again(name: str) -> None:
    for number in range(4):
        one, two = drawn(name, number), drawn(name, number)
        assert one.code == two.code and one.mode == two.mode
        assert [a.tobytes() if a.dtype != object else a.tolist() for a in one.arrays] == [
            a.tobytes() if a.dtype != object else a.tolist() for a in two.arrays
        ]
        compile(program(one), name, "exec")


def test_specs_name_public_functions() -> None:
    unknown = [n for n in SPECS if ":" not in n and not hasattr_path(tf, n)]
    assert len(SPECS) > 400
    # TensorFlow has these, Thalweg not: the fuzzer leaves them out.
    assert len(unknown) < 20, unknown


def hasattr_path(root: Any, name: str) -> bool:
    for part in name.split("."):
        root = getattr(root, part, None)
    return root is not None


def test_equal_answers_agree() -> None:
    one = answer([1.0, np.nan, np.inf])
    assert not kinds(one, one)


def test_values_are_compared_by_the_rounding_of_their_dtype() -> None:
    near = answer(np.float32([1.0, 1.0 + 1e-6]))
    assert not kinds(near, answer(np.float32([1.0, 1.0])))
    assert kinds(answer(np.float64([1 + 1e-6])), answer(np.float64([1]))) == ["value"]
    assert kinds(answer(np.float32([1e-9, 1])), answer(np.float32([0, 1])), scaled=False) == [
        "value"
    ]
    assert not kinds(answer(np.float32([1e-9, 1])), answer(np.float32([0, 1])))


def test_nans_and_infinities_must_stand_at_the_same_places() -> None:
    assert kinds(answer([np.nan, 1.0]), answer([1.0, 1.0])) == ["nan"]
    assert kinds(answer([np.inf]), answer([-np.inf])) == ["nan"]


def test_dtypes_shapes_and_static_shapes() -> None:
    assert kinds(answer(np.int32([1])), answer(np.int64([1]))) == ["dtype", "dtype"]
    assert kinds(answer([1.0]), answer([[1.0]])) == ["shape"]
    assert "static shape" in kinds(answer([1.0], static=[[3]]), answer([1.0]))
    assert kinds(answer([1.0], static=[None]), answer([1.0])) == ["inference"]
    assert not kinds(answer([1.0]), answer([1.0], static=[None]))


def test_errors_must_be_of_one_class() -> None:
    error = {"kind": "error", "class": "ValueError", "text": "no", "arrays": []}
    other = {**error, "class": "TypeError"}
    assert kinds(error, answer(1.0)) == ["raises"]
    assert kinds(answer(1.0), error) == ["accepts"]
    assert kinds(error, other) == ["error class"]
    assert not kinds(error, error)


def test_gradients_are_none_on_both_sides_or_on_neither() -> None:
    given = {"gradients": {"kind": "values", "given": [0], "static": [[]]}}
    none = {"gradients": {"kind": "values", "given": [], "static": []}}
    one = {**answer(1.0), **given}
    one["arrays"].append(np.float64(2.0))
    assert kinds(one, {**answer(1.0), **none}) == ["gradient none"]
    two = {**answer(1.0), **given}
    two["arrays"].append(np.float64(2.5))
    assert kinds(one, two) == ["gradient value"]


def test_disagreements_are_grouped_under_the_smallest_case() -> None:
    report = Report(())
    report.add(case(np.zeros(9, np.float32)), [("value", "large")])
    report.add(case(np.zeros(2, np.float32)), [("value", "small")])
    report.add(case(np.zeros(2, np.int32)), [("value", "other")])
    assert [(g.dtype, g.count, g.detail) for g in report.groups.values()] == [
        ("float32", 2, "small"),
        ("int32", 1, "other"),
    ]
    assert any("tf.identity(x0)" in line for line in report.lines(0))


def test_known_differences_are_narrow_and_reported_when_stale() -> None:
    row = Known("identity", "value", "a reason", dtype="float32", detail="small")
    stale = Known("identity", "nan", "never")
    elsewhere = Known("tanh", "nan", "not called")
    report = Report((row, stale, elsewhere))
    report.add(case(np.float32(1)), [("value", "small"), ("value", "large")])
    report.add(case(np.float64(1)), [("value", "small")])
    assert report.known[row] == 1
    assert len(report.groups) == 2
    assert report.stale() == [stale]


def test_rows_of_the_table_say_why() -> None:
    for row in TABLE:
        assert len(row.reason) > 20, row
        assert row.function != "*" or row.detail, row


def fake() -> Process:
    return Process([sys.executable, "-m", "tests.tools.fake_worker"], seconds=30)


def test_a_worker_that_dies_is_replaced() -> None:
    worker = fake()
    try:
        assert worker.ask(case(1.0).message())["kind"] == "values"
        died = worker.ask(case(1.0, code=("crash",)).message())
        assert died["kind"] == "crash" and "last words" in died["text"]
        assert worker.ask(case(2.0).message())["arrays"][0] == 2.0
        assert worker.restarts == 1
    finally:
        worker.stop()


def test_a_worker_that_hangs_is_killed_and_replaced() -> None:
    worker = fake()
    try:
        assert worker.ask(case(1.0).message())["kind"] == "values"
        worker.seconds = 0.05
        assert worker.ask(case(1.0, code=("hang",)).message())["kind"] == "hang"
        worker.seconds = 30
        assert worker.ask(case(2.0).message())["kind"] == "values"
    finally:
        worker.stop()


def test_a_death_is_a_finding_and_the_run_goes_on() -> None:
    workers, report = Pair(fake(), fake()), Report(())
    try:
        for code in (("fine",), ("crash",), ("fine",)):
            command.one(case(1.0, code=code), workers, report, False)
    finally:
        workers.stop()
    assert report.cases == 3 and report.agreed == 2
    assert [g.kind for g in report.groups.values()] == ["thalweg crash"]


def test_the_cases_of_a_run_are_those_of_its_seed() -> None:
    options = argparse.Namespace(seed=3, first=0, cases=20, case=None)
    functions = {name: [name] for name in SPECS}
    one = [(c.function, c.code) for c in command.cases(options, functions)]
    two = [(c.function, c.code) for c in command.cases(options, functions)]
    assert one == two
    options.case = 11
    assert [(c.function, c.code) for c in command.cases(options, functions)] == [one[11]]


@pytest.mark.parametrize("mode", ["static", "unknown", "constant"])
def test_thalwegs_worker_answers_values_gradients_and_errors(mode: str) -> None:
    side = Thalweg()
    asked = case(np.float32([1, 2]), mode=mode, gradient=(0,), code=("tf.square(x0)",))
    report = execute(side, asked.message())
    assert report["arrays"][0].tolist() == [1, 4]
    weights = np.cos(np.arange(2) * 1.7) + 0.3
    np.testing.assert_allclose(report["arrays"][1], 2 * np.array([1, 2]) * weights, rtol=1e-6)
    wrong = execute(
        side, case(np.float32([1, 2]), code=("tf.reshape(x0, [3])",), mode=mode).message()
    )
    assert wrong["kind"] == "error"


def test_steps_run_before_the_results_are_fetched() -> None:
    code = ("v = tf.Variable(1.0)", "steps = [tf.assign_add(v, 2.0)] * 3", "v")
    report = execute(Thalweg(), case(code=code).message())
    assert report["arrays"][0] == 7.0


@pytest.mark.parametrize("compiled", [False, True])
def test_sessions_compile_where_a_case_says_so(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "COMPILES", engine.COMPILES)  # which a worker sets
    with tf.Graph().as_default(), Thalweg().session(compiled) as session:
        plan = session.plan(tf.tanh(tf.placeholder(tf.float32, [3])))
    assert any(isinstance(unit, PlannedRegion) for unit in plan.units) == compiled
