"""Training and evaluation as one: `Experiment` and `learn_runner.run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.alias.learn.estimators import Estimator


class Experiment:
    """An estimator, with what it is trained and evaluated on.

    Args:
        estimator: one of `tf.contrib.learn` or of `tf.estimator`.
        train_input_fn, eval_input_fn: what it is trained and evaluated on.
        eval_metrics: names -> metrics, besides those of the estimator.
        train_steps: how long it is trained; forever if None.
        eval_steps: how long it is evaluated; to the end of the input if None.
        train_monitors: hooks for training.
        eval_hooks: hooks for evaluation.
        min_eval_frequency: after how many steps it is evaluated too; only at the end if None.
        options: `eval_delay_secs` and others that say how to wait for another process.
    """

    def __init__(
        self,
        estimator: Any,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        eval_metrics: dict[str, Any] | None = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        min_eval_frequency: int | None = None,
        **options: Any,
    ) -> None:
        self._estimator = estimator
        self._train_input_fn, self._eval_input_fn = train_input_fn, eval_input_fn
        self._eval_metrics = eval_metrics
        self._train_steps, self._eval_steps = train_steps, eval_steps
        self._train_monitors, self._eval_hooks = list(train_monitors or ()), eval_hooks
        self._min_eval_frequency = min_eval_frequency
        self._options = options

    @property
    def estimator(self) -> Any:
        """The estimator."""
        return self._estimator

    def train(self, delay_secs: float | None = None) -> Any:
        """Train for all steps."""
        return self._train_to(self._train_steps)

    def _train_to(self, steps: int | None) -> Any:
        if isinstance(self._estimator, Estimator):
            return self._estimator.fit(
                input_fn=self._train_input_fn, max_steps=steps, monitors=self._train_monitors
            )
        return self._estimator.train(
            self._train_input_fn, max_steps=steps, hooks=self._train_monitors
        )

    def evaluate(self, delay_secs: float | None = None, name: str | None = None) -> Any:
        """Evaluate once."""
        options: dict[str, Any] = {"steps": self._eval_steps, "hooks": self._eval_hooks}
        if isinstance(self._estimator, Estimator):
            options["metrics"] = self._eval_metrics
        return self._estimator.evaluate(input_fn=self._eval_input_fn, name=name, **options)

    def train_and_evaluate(self) -> Any:
        """Train, evaluating in between and at the end; gives the last evaluation."""
        found: Any = None
        between = self._min_eval_frequency or self._train_steps
        done = 0
        while between and (self._train_steps is None or done < self._train_steps):
            ahead = done + between
            done = ahead if self._train_steps is None else min(ahead, self._train_steps)
            self._train_to(done)
            found = self.evaluate()
        if found is None:
            self.train()
            found = self.evaluate()
        return found

    def test(self) -> Any:
        """Train and evaluate for one step."""
        self._train_to(1)
        return self.evaluate()


def run(
    experiment_fn: Callable[..., Experiment],
    output_dir: str | None = None,
    schedule: str | None = None,
    run_config: Any = None,
    hparams: Any = None,
) -> Any:
    """Make an experiment and call one of its methods, `train_and_evaluate` if none is named."""
    if output_dir is not None:
        experiment = experiment_fn(output_dir)
    elif hparams is not None:
        experiment = experiment_fn(run_config=run_config, hparams=hparams)
    else:
        experiment = experiment_fn(run_config)
    chosen = getattr(experiment, schedule or "train_and_evaluate", None)
    if not callable(chosen):
        raise ValueError(f"Schedule references non-existent task {schedule}")
    return chosen()
