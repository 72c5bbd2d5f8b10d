"""One side of the comparison: a process that runs cases on Thalweg or on TensorFlow.

`python -m tools.fuzz_tf.worker thalweg|tensorflow` reads messages from standard input and answers
each on standard output: what a case gave (arrays, static shapes, gradients) or the error it raised.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tools.fuzz_tf import wire

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # its kernels quantize by rules of their own


class Thalweg:
    """Runs cases on Thalweg."""

    def __init__(self) -> None:
        import thalweg
        from thalweg.runtime import engine

        self.tf = thalweg
        self.engine = engine

    def session(self, compiled: bool) -> Any:
        """A session that compiles its steps or does not."""
        self.engine.COMPILES = compiled
        return self.tf.Session()

    def aliases(self) -> list[list[str]]:
        """The public names, those of one object together."""
        from thalweg import public

        groups: dict[int, list[str]] = {}
        for name, value in public.namespace().items():
            groups.setdefault(id(value), []).append(name)
        return list(groups.values())


class TensorFlow:
    """Runs cases on TensorFlow 2's graph mode."""

    def __init__(self) -> None:
        import logging

        from tensorflow.compat import v1  # pyright: ignore[reportMissingImports] - the peers' environment

        v1.disable_v2_behavior()
        logging.getLogger("tensorflow").setLevel(logging.FATAL)
        self.tf = v1
        self.config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        # The kernels are what is compared; rewriting the graph takes longer than running it.
        self.config.graph_options.rewrite_options.disable_meta_optimizer = True
        self.config.graph_options.optimizer_options.opt_level = -1

    def session(self, compiled: bool) -> Any:
        """A session; there is one way to run."""
        return self.tf.Session(config=self.config)

    def aliases(self) -> list[list[str]]:
        """No groups: Thalweg's registry has them."""
        return []


def attribute(tf: Any, name: str) -> Any:
    """What a dotted public name is bound to, or None."""
    for part in name.split("."):
        tf = getattr(tf, part, None)
    return tf


def leaves(tf: Any, result: Any) -> Iterator[Any]:
    """The tensors of a result, in an order both libraries agree on; what is no tensor stays."""
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result)]
    if isinstance(result, tf.SparseTensor):
        yield from (result.indices, result.values, result.dense_shape)
    elif isinstance(result, tf.IndexedSlices):
        yield tf.convert_to_tensor(result)
    elif isinstance(result, list | tuple):
        for part in result:
            yield from leaves(tf, part)
    elif hasattr(result, "read_value"):  # a variable of whichever kind
        yield result.read_value()
    else:
        yield result


def execute(side: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Run a case; the answer says how far it came."""
    try:
        return _executed(side, message)
    except Exception as error:
        return {"kind": "error", "stage": "build", **_described(error)}


def _described(error: BaseException) -> dict[str, str]:
    # TensorFlow adds the tracebacks of nodes before and after what it has to say.
    said = re.sub(r"(?s)^.*\nNode: '[^']*'\n|\s*\[\[\{\{node .*", "", str(error))
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return {"class": type(error).__name__, "text": " | ".join(lines)[:600]}


def _executed(side: Any, message: dict[str, Any]) -> dict[str, Any]:
    tf = side.tf
    with tf.Graph().as_default(), side.session(message["compiled"]) as session:
        inputs = [_input(tf, array, message["mode"]) for array in message["arrays"]]
        feeds = {}
        if message["mode"] != "constant":
            feeds = dict(zip(inputs, message["arrays"], strict=True))
        scope = {"tf": tf, "np": np, **{f"x{i}": x for i, x in enumerate(inputs)}}
        outputs = list(leaves(tf, _evaluate(message["code"], scope)))
        run = _runner(session, feeds)
        try:
            _prepare(tf, run, scope)
            values = run([o for o in outputs if _is_fetchable(tf, o)])
        except Exception as error:
            return {"kind": "error", "stage": "run", **_described(error)}
        answer = _answer(tf, outputs, values)
        if message["gradient"]:
            answer["gradients"] = _gradients(tf, run, message, inputs, outputs, answer)
        return answer


def _input(tf: Any, array: Any, mode: str) -> Any:
    dtype = tf.as_dtype(wire.dtype_name(array))
    if mode == "constant":
        return tf.constant(array, dtype, shape=array.shape)
    return tf.placeholder(dtype, None if mode == "unknown" else array.shape)


def _evaluate(code: list[str], scope: dict[str, Any]) -> Any:
    source = "\n".join([*code[:-1], f"result = {code[-1]}"])
    exec(compile(source, "<case>", "exec"), scope)
    return scope["result"]


def _runner(session: Any, feeds: dict[Any, Any]) -> Callable[[Any], Any]:
    return lambda fetches: session.run(fetches, feeds)


def _prepare(tf: Any, run: Callable[[Any], Any], scope: dict[str, Any]) -> None:
    if tf.global_variables():
        run(tf.global_variables_initializer())
    if tf.local_variables():
        run(tf.local_variables_initializer())
    for step in scope.get("steps", []):
        run(step)


def _is_fetchable(tf: Any, output: Any) -> bool:
    return isinstance(output, tf.Tensor | tf.Operation)


def _answer(tf: Any, outputs: list[Any], values: list[Any]) -> dict[str, Any]:
    found = iter(values)
    arrays: list[Any] = []
    static: list[Any] = []
    dtypes: list[str] = []
    for output in outputs:
        value = next(found) if _is_fetchable(tf, output) else _plain(output)
        tensor = isinstance(output, tf.Tensor)
        arrays.append(_array(value))
        static.append(_dims(output) if tensor else None)
        dtypes.append(output.dtype.base_dtype.name if tensor else "-")
    return {"kind": "values", "static": static, "dtypes": dtypes, "arrays": arrays}


def _array(value: Any) -> Any:
    if value is None:
        return np.zeros((0, 0, 0), np.bool_)
    if isinstance(value, bytes | str):
        result = np.empty((), object)
        result[()] = value
        return result
    return np.asarray(value)


def _plain(output: Any) -> Any:
    return output.as_list() if hasattr(output, "as_list") else output


def _dims(tensor: Any) -> list[int] | None:
    shape = tensor.get_shape()
    return None if shape.rank is None else [-1 if d is None else int(d) for d in shape.as_list()]


def _gradients(
    tf: Any,
    run: Callable[[Any], Any],
    message: dict[str, Any],
    inputs: list[Any],
    outputs: list[Any],
    answer: Any,
) -> dict[str, Any]:
    """What gradients gave: which are None, and the indices of the others among the arrays."""
    try:
        ys, weights = [], []
        for output, value in zip(outputs, answer["arrays"], strict=True):
            if isinstance(output, tf.Tensor) and (
                output.dtype.is_floating or output.dtype.is_complex
            ):
                ys.append(output)
                weights.append(tf.constant(_weights(value), output.dtype.base_dtype, value.shape))
        if not ys:
            return {"kind": "none"}
        found = tf.gradients(ys, [inputs[i] for i in message["gradient"]], weights)
        given = [i for i, g in enumerate(found) if g is not None]
        tensors = [tf.convert_to_tensor(found[i]) for i in given]
        arrays = run(tensors)
    except Exception as error:
        return {"kind": "error", **_described(error)}
    answer["arrays"] += [np.asarray(a) for a in arrays]
    return {"kind": "values", "given": given, "static": [_dims(t) for t in tensors]}


def _weights(value: Any) -> Any:
    """Gradients of the outputs that no symmetry cancels."""
    return np.cos(np.arange(value.size) * 1.7).reshape(value.shape) + 0.3


def serve(side: Any, take: Callable[[int], bytes], put: Callable[[bytes], None]) -> None:
    """Answer messages until the pipe closes."""
    while True:
        try:
            message = wire.read(take)
        except EOFError:
            return
        if message["kind"] == "names":
            known = [n for n in message["names"] if attribute(side.tf, n) is not None]
            answer = {"kind": "names", "names": known, "aliases": side.aliases()}
        else:
            answer = execute(side, message)
        put(wire.encode(answer))


def main() -> None:
    """Keep the pipe for messages: what the library prints goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    side = Thalweg() if sys.argv[1] == "thalweg" else TensorFlow()

    def take(count: int) -> bytes:
        data = source.read(count)
        if len(data) < count:
            raise EOFError
        return data

    def put(data: bytes) -> None:
        sink.write(data)
        sink.flush()

    serve(side, take, put)


if __name__ == "__main__":
    main()
