"""`tf.contrib.tpu` where there is no TPU: programs that were written for one, run here.

`TPUEstimator(use_tpu=False)` is an Estimator that tells its functions the size of their batches;
loops, `rewrite` and `batch_parallel` build their computation where they are called.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from thalweg.alias import names
from thalweg.graph import nest
from thalweg.train.optimizers.optimizer import Optimizer

tf = names.root()


class InputPipelineConfig(enum.IntEnum):
    """How inputs are divided among the hosts and cores of a TPU."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class TPUConfig(NamedTuple):
    """What a TPU would be told; kept, and without effect here."""

    iterations_per_loop: Any = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: Any = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: InputPipelineConfig = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1


class CrossShardOptimizer(Optimizer):
    """An optimizer that averages gradients over shards: there is one, so they stay as they are."""

    def __init__(
        self, opt: Any, reduction: Any = None, name: str = "CrossShardOptimizer", group: Any = None
    ) -> None:
        super().__init__(False, name)
        self._opt = opt

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients of the optimizer inside."""
        return self._opt.compute_gradients(*args, **kwargs)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        """What the optimizer inside does with them."""
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """A slot of the optimizer inside."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The slots of the optimizer inside."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """The variables of the optimizer inside."""
        return self._opt.variables()


def cross_replica_sum(x: Any, group_assignment: Any = None, name: str | None = None) -> Any:
    """The sum over all replicas: there is one."""
    return tf.identity(x, name=name)


@contextlib.contextmanager
def bfloat16_scope(name: str | None = None) -> Generator[Any]:
    """A variable scope whose variables are float32, and read as bfloat16 where that is asked."""

    def getter(get: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        wanted = tf.as_dtype(kwargs.get("dtype") or tf.float32)
        if wanted != tf.bfloat16:
            return get(*args, **kwargs)
        return tf.cast(get(*args, **(kwargs | {"dtype": tf.float32})), tf.bfloat16)

    with tf.variable_scope("" if name is None else name, custom_getter=getter) as scope:
        yield scope


def while_loop(
    condition: Callable[..., Any], body: Callable[..., Any], inputs: Any = None, **_: Any
) -> Any:
    """A loop on tensors; gives their last values, or runs for its effects without inputs."""
    given = [tf.convert_to_tensor(value) for value in inputs or ()]
    if not given:

        def goes_on(_: Any) -> Any:
            return condition()

        start = [tf.constant(0)]
        return tf.group(tf.while_loop(goes_on, functools.partial(_after, body), start))
    return tf.while_loop(condition, body, given)


def _after(body: Callable[..., Any], count: Any) -> Any:
    """One more, once the body has run."""
    done = body()
    with tf.control_dependencies([done] if done is not None else []):
        return count + 1


def repeat(n: Any, body: Callable[..., Any], inputs: Any = None, **_: Any) -> Any:
    """Run a body `n` times; gives what its last run returns."""
    given = [tf.convert_to_tensor(value) for value in inputs or ()]

    def counted(i: Any, *values: Any) -> Any:
        if not given:
            return [_after(body, i)]
        found = body(*values)
        return [i + 1, *nest.as_list(found)]

    def goes_on(i: Any, *_: Any) -> Any:
        return i < n

    found = tf.while_loop(goes_on, counted, [tf.constant(0), *given])
    if not given:
        return tf.group(found)
    return found[1:] if len(given) > 1 else found[1]


def rewrite(computation: Callable[..., Any], inputs: Any = None, *_: Any, **__: Any) -> Any:
    """What a computation gives for some inputs, built here."""
    found = computation(*(tf.convert_to_tensor(value) for value in inputs or ()))
    return nest.as_list(found)


def batch_parallel(
    computation: Callable[..., Any], inputs: Any = None, num_shards: int = 1, **_: Any
) -> Any:
    """What a computation gives for parts of a batch, put together again."""
    given = [tf.split(value, num_shards) for value in inputs or ()]
    shards = [rewrite(computation, [value[i] for value in given]) for i in range(num_shards)]
    return [tf.concat(list(parts), 0) for parts in zip(*shards, strict=True)]


def shard(
    computation: Callable[..., Any], inputs: Any = None, num_shards: int = 1, **_: Any
) -> Any:
    """The same as `batch_parallel`."""
    return batch_parallel(computation, inputs, num_shards)


_ESTIMATOR = ("RunConfig", "TPUEstimator", "TPUEstimatorSpec")


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("thalweg.alias.contrib.tpu_estimator"), name)
