"""`thalweg explain`: runs a program and writes a page about the steps that it ran."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg.cli.arguments import Subparsers, subcommand
from thalweg.cli.problem import Problem
from thalweg.cli.run import prepare, run_program
from thalweg.inspect.explain import StepPlan
from thalweg.inspect.explain_page import page
from thalweg.inspect.session import InspectedSession

_ABOUT = """\
Run a Python program and write a page about each step that its sessions ran: the graph before and
after each pass of the optimiser, the rules that fired with the lines of the program, the kernels
and their times, and the memory they need. The page needs no network."""

_EXAMPLES = """\
examples:
  thalweg explain train.py                       writes train.html
  thalweg explain --out step.html train.py --steps 1"""

_MAX_STEPS = 12


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(
        commands, "explain", "show what becomes of a program's steps", _ABOUT, _EXAMPLES
    )
    command.add_argument("--out", type=Path, help="the page (default: the program's name, .html)")
    command.add_argument(
        "--replace", action="store_true", help="stand in for a TensorFlow that is installed"
    )
    command.add_argument("script", help="a Python file")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    script = Path(args.script)
    out = args.out or Path(script.with_suffix(".html").name)
    prepare(script, args.replace)
    with Recorder() as recorder:
        status = run_program(script, args.arguments)
    if not recorder.plans:
        raise Problem(f"{script}: no session ran a step that is compiled")
    out.write_text(page(script.name, recorder.plans.values()), "utf-8")
    print(f"{out}: {len(recorder.plans)} steps")
    return status


class Recorder:
    """Plans of the steps that sessions run inside a `with` block, each after its first run."""

    def __init__(self) -> None:
        self.plans: dict[Any, StepPlan] = {}
        self._methods = InspectedSession.run, InspectedSession.make_callable

    def __enter__(self) -> Recorder:
        run, make_callable = self._methods
        note = self._note

        def noted_run(
            session: InspectedSession, fetches: Any, feed_dict: Any = None, *rest: Any, **more: Any
        ) -> Any:
            result = run(session, fetches, feed_dict, *rest, **more)
            note(session, fetches, feed_dict or {})
            return result

        def noted_callable(
            session: InspectedSession,
            fetches: Any,
            feed_list: Sequence[Any] | None = None,
            **more: Any,
        ) -> Callable[..., Any]:
            call = make_callable(session, fetches, feed_list, **more)

            def noted(*values: Any, **options: Any) -> Any:
                result = call(*values, **options)
                note(session, fetches, dict(zip(feed_list or (), values, strict=False)))
                return result

            return noted

        self._install(noted_run, noted_callable)
        return self

    def __exit__(self, *_: object) -> None:
        self._install(*self._methods)

    @staticmethod
    def _install(run: Any, make_callable: Any) -> None:
        InspectedSession.run, InspectedSession.make_callable = run, make_callable

    def _note(self, session: InspectedSession, fetches: Any, feeds: Mapping[Any, Any]) -> None:
        key = session.graph, repr(fetches), tuple(map(repr, feeds))
        if key in self.plans or len(self.plans) >= _MAX_STEPS:
            return
        plan = session.plan(fetches, feeds)
        if plan.kernels:
            self.plans[key] = plan
