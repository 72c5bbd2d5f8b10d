"""Sessions around sessions, each with one duty: call hooks, end with the threads, come back.

A monitored session is a recoverable one around a coordinated one around a hooked one around a plain
one. All have `run`, `should_stop` and `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from thalweg import errors, protos
from thalweg.graph.node import Node, Tensor
from thalweg.platform import tf_logging
from thalweg.train.coordinator import Coordinator
from thalweg.train.hooks.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

#: A machine went away, not the program wrong: a new session may do better.
PREEMPTION_ERRORS = (errors.AbortedError, errors.UnavailableError)


class StepContext:
    """What a step function gets: the plain session, and a way to run a step with hooks."""

    def __init__(self, session: Any, run_with_hooks: Callable[..., Any]) -> None:
        self._session = session
        self._run_with_hooks = run_with_hooks

    @property
    def session(self) -> Any:
        """The plain session."""
        return self._session

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step with all hooks around it."""
        return self._run_with_hooks(*args, **kwargs)

    def request_stop(self) -> None:
        """Leave the step function and the training loop."""
        raise StopIteration("step_fn has requested the iterations to stop.")


class WrappedSession:
    """A session that passes everything on to another one, until it is closed."""

    def __init__(self, sess: Any) -> None:
        self._sess: Any = sess
        self._is_stoppable = isinstance(sess, WrappedSession)

    @property
    def graph(self) -> Any:
        """The graph of the session."""
        return self._sess.graph

    @property
    def sess_str(self) -> str:
        """The target the session is connected to."""
        return self._sess.sess_str

    def should_stop(self) -> bool:
        """Whether the program should run no more steps."""
        if self._check_stop() or self._sess is None:
            return True
        return self._is_stoppable and self._sess.should_stop()

    def _check_stop(self) -> bool:
        """Whether this session, as against the one it wraps, wants to stop."""
        return False

    def close(self) -> None:
        """Close the session; that its machine is gone already does no harm."""
        session, self._sess = self._sess, None
        if session is None:
            return
        try:
            session.close()
        except PREEMPTION_ERRORS as error:
            tf_logging.warning("The session was gone before it was closed: %s", error)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step."""
        return self._sess.run(*args, **kwargs)

    def run_step_fn(self, step_fn: Callable[[StepContext], Any], raw_session: Any) -> Any:
        """Call a step function with a context to run steps in."""
        return step_fn(StepContext(raw_session(), self.run))


class RecoverableSession(WrappedSession):
    """A session that is rebuilt when its machine goes away, and the step run again."""

    def __init__(self, sess_creator: Any) -> None:
        self._sess_creator = sess_creator
        super().__init__(self._created())

    def _created(self) -> Any:
        while True:
            try:
                return self._sess_creator.create_session()
            except PREEMPTION_ERRORS as error:
                tf_logging.info("No session yet, trying again: %s", error)

    def should_stop(self) -> bool:
        """Whether to stop; a session that was lost is no reason."""
        try:
            return super().should_stop()
        except PREEMPTION_ERRORS as error:
            self._recover(error)
            return False
        except Exception:  # it comes out when the session is closed
            return True

    def _recover(self, error: Exception) -> None:
        tf_logging.info(
            "A new session is made and the last checkpoint restored, because the session or its "
            "machine is gone: %s",
            error,
        )
        with suppress(*PREEMPTION_ERRORS):  # the threads tell of the same loss
            self.close()
        self._sess = self._created()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step, in a new session if need be."""
        return self._persistently(lambda: self._sess.run(*args, **kwargs))

    def run_step_fn(self, step_fn: Callable[[StepContext], Any], raw_session: Any) -> Any:
        """Call a step function, again in a new session if need be."""
        return self._persistently(lambda: self._sess.run_step_fn(step_fn, raw_session))

    def _persistently(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except PREEMPTION_ERRORS as error:
                self._recover(error)


class CoordinatedSession(WrappedSession):
    """A session that ends with the threads of a coordinator, and they with it."""

    def __init__(self, sess: Any, coord: Coordinator, stop_grace_period_secs: float = 120) -> None:
        super().__init__(sess)
        self._coord = coord
        self._stop_grace_period_secs = stop_grace_period_secs

    def _check_stop(self) -> bool:
        self._coord.raise_requested_exception()
        return self._coord.should_stop()

    def close(self) -> None:
        """Stop the threads, wait for them, close the session; raise what stopped them."""
        self._coord.request_stop()
        try:
            self._coord.join(
                stop_grace_period_secs=self._stop_grace_period_secs, ignore_live_threads=True
            )
        finally:
            with suppress(Exception):  # what counts was raised by join
                super().close()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step. If a thread lost its machine, that is why the step failed too."""
        try:
            return self._sess.run(*args, **kwargs)
        except PREEMPTION_ERRORS:
            raise
        except Exception as error:
            self._raise_preemption(error)
            raise

    def _raise_preemption(self, error: Exception) -> None:
        try:
            self._coord.raise_requested_exception()
        except PREEMPTION_ERRORS as cause:
            raise cause from error
        except Exception as other:
            tf_logging.vlog(1, "Also reported to the coordinator: %s", other)


class HookedSession(WrappedSession):
    """A session that calls hooks around every step."""

    def __init__(self, sess: Any, hooks: Sequence[SessionRunHook]) -> None:
        super().__init__(sess)
        self._hooks = hooks
        self._should_stop = False

    def _check_stop(self) -> bool:
        return self._should_stop

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any = None,
        run_metadata: Any = None,
    ) -> Any:
        """Run a step with what the hooks add to it."""
        if self.should_stop():
            raise RuntimeError("Run called even after should_stop requested.")
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), self._sess)
        requests = [hook.before_run(context) for hook in self._hooks]
        asked = [request for request in requests if request is not None]
        options = _merged_options([options, *(request.options for request in asked)])
        if options is not None and run_metadata is None:
            run_metadata = protos.RunMetadata()
        wanted = [None if request is None else request.fetches for request in requests]
        results = self._run_merged(
            [fetches, *wanted],
            feed_dict=_merged_feeds(feed_dict, asked),
            options=options,
            run_metadata=run_metadata,
        )
        about = options or protos.RunOptions(), run_metadata or protos.RunMetadata()
        for hook, result in zip(self._hooks, results[1:], strict=True):
            hook.after_run(context, SessionRunValues(result, *about))
        self._should_stop = self._should_stop or context.stop_requested
        return results[0]

    def _run_merged(self, structures: list[Any], **more: Any) -> list[Any]:
        """One step for several fetch structures. Flat ones go as one list: a session is fastest
        with lists of tensors that it has seen before."""
        caller, *others = structures
        parts = [_flat(part) for part in structures]
        if any(part is None for part in parts):
            asked = {at: part for at, part in enumerate(others, 1) if part is not None}
            found = super().run({0: caller} | asked, **more)
            return [found.get(at) for at in range(len(structures))]
        flat = cast("list[list[Any]]", parts)
        values = iter(super().run([item for part in flat for item in part], **more))
        return [_packed(part, values) for part in structures]


def _flat(fetches: Any) -> list[Any] | None:
    """The elements of a fetch structure that is no more than a list of them, else None."""
    if fetches is None:
        return []
    items = cast("Sequence[Any]", fetches) if type(fetches) in (list, tuple) else [fetches]
    return list(items) if all(isinstance(item, Tensor | Node) for item in items) else None


def _packed(fetches: Any, values: Any) -> Any:
    """The next values, in the form of a structure that was flat."""
    if fetches is None:
        return None
    if type(fetches) not in (list, tuple):
        return next(values)
    taken = [next(values) for _ in cast("Sequence[Any]", fetches)]
    return taken if type(fetches) is list else tuple(taken)


def _merged_feeds(
    feed_dict: Mapping[Any, Any] | None, requests: Sequence[SessionRunArgs]
) -> Mapping[Any, Any] | None:
    """The feeds of the program and the hooks: no tensor is fed twice."""
    merged: dict[Any, Any] = {}
    for request in requests:
        if request.feed_dict:
            _check_distinct(merged, request.feed_dict, "Same tensor is fed by two hooks.")
            merged |= request.feed_dict
    if not merged:
        return feed_dict
    if feed_dict:
        text = "Same tensor is fed by a SessionRunHook and user."
        _check_distinct(feed_dict, merged, text)
    return merged | dict(feed_dict or {})


def _check_distinct(one: Mapping[Any, Any], other: Mapping[Any, Any], text: str) -> None:
    both = set(one) & set(other)
    if both:
        names = ", ".join(str(getattr(tensor, "name", tensor)) for tensor in both)
        raise RuntimeError(f"{text} Conflicting tensors: {names}")


def _merged_options(all_options: Sequence[Any]) -> Any:
    """What everybody wants of a step, the most of each; None if nobody wants anything."""
    given = [options for options in all_options if options is not None]
    if len(given) < 2:
        return given[0] if given else None
    merged = protos.RunOptions.FromString(given[0].SerializeToString())
    for options in given[1:]:
        for name in ("trace_level", "timeout_in_ms", "inter_op_thread_pool"):
            setattr(merged, name, max(getattr(merged, name), getattr(options, name)))
        for name in ("output_partition_graphs", "report_tensor_allocations_upon_oom"):
            setattr(merged, name, getattr(merged, name) or getattr(options, name))
        if options.HasField("debug_options"):
            merged.debug_options.MergeFromString(options.debug_options.SerializeToString())
    return merged
