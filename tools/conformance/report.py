"""Counts, tables and reasons out of the results of a run."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from conformance.grounds import ground
from conformance.suite import FileResult, Outcome

BROKEN = ("failed", "error")
COLUMNS = ("run", "passed", "failed", "errors", "skipped")
TOP_REASONS = 25


def progress(result: FileResult) -> str:
    """One line for a file that has just ended."""
    run, passed, *_ = counts([result])
    return f"{passed:4}/{run:<4} {result.file.path}  {result.trouble[:120]}".rstrip()


def counts(results: Sequence[FileResult]) -> tuple[int, int, int, int, int]:
    """Methods run, passed, failed, errors and skipped; a skipped method is not run."""
    passed, failed, errors, skipped = (
        sum(result.count(status) for result in results)
        for status in ("passed", "failed", "error", "skipped")
    )
    return passed + failed + errors, passed, failed, errors, skipped


def text(results: Sequence[FileResult]) -> str:
    """The report for a terminal: each failure in a line, reasons grouped, totals."""
    lines = [line for result in results for line in failures(result)]
    lines += ["", "Most frequent reasons:"]
    lines += [f"{count:5}  {reason}" for reason, count in grouped(results)]
    lines += ["", "By ground:"]
    lines += [f"{count:5}  {name}" for name, count in by_ground(results)]
    return "\n".join([*lines, "", totals(results)])


def markdown(results: Sequence[FileResult]) -> str:
    """The report as a document: totals, the grounds of failures, and a table of files."""
    rows = [(cell(r.file.path), *counts([r])) for r in results]
    rows.append(("**total**", *counts(results)))
    grounds = table(("failures", "ground"), [(n, cell(name)) for name, n in by_ground(results)])
    return (
        "# Conformance\n\nTensorFlow's own test files (late 2016) run against Thalweg under its "
        "alias, with names as TensorFlow 0.12 meant them,\nby `make conformance`.\n\n"
        f"{totals(results)}.\n\n## Why the rest fails\n\n"
        f"{grounds}\n\n## By file\n\n{table(('file', *COLUMNS), rows)}\n"
    )


def by_ground(results: Sequence[FileResult]) -> list[tuple[str, int]]:
    """Failures counted under their named grounds."""
    found = Counter(
        ground(r["file"], r["method"], r["exception"], r["message"])
        for result in results
        for r in reasons(result)
    )
    return found.most_common()


def totals(results: Sequence[FileResult]) -> str:
    """The last line: how many of how many passed."""
    run, passed, *_ = counts(results)
    return f"{passed} of {run} methods in {len(results)} files passed ({passed / max(run, 1):.1%})"


def failures(result: FileResult) -> Iterator[str]:
    """A line per failed method, and one for all methods that the file never reached."""
    path = result.file.path
    for outcome in result.outcomes:
        if outcome.status in BROKEN and not outcome.lost:
            yield f"{path}:{outcome.method}  {one_line(outcome)}"
    lost = sum(outcome.lost for outcome in result.outcomes)
    if lost:
        yield f"{path}: {lost} methods did not run  {result.trouble}"


def reasons(result: FileResult) -> Iterator[dict[str, str]]:
    """One record per failed method, made to be grouped."""
    for outcome in result.outcomes:
        if outcome.status in BROKEN:
            yield {
                "file": result.file.path,
                "method": outcome.method,
                "exception": outcome.exception,
                "message": outcome.message,
                "frame": outcome.frame,
            }


def grouped(results: Sequence[FileResult]) -> list[tuple[str, int]]:
    """The most frequent reasons with their counts; numbers and quoted names do not separate."""
    broken = (o for result in results for o in result.outcomes if o.status in BROKEN)
    return Counter(general_reason(outcome) for outcome in broken).most_common(TOP_REASONS)


def general_reason(outcome: Outcome) -> str:
    if outcome.exception == "AssertionError":
        return "AssertionError: a value, shape or text is not the expected one"
    message = re.sub(r"'\w*Test\w*'", "'*Test'", outcome.message)
    return f"{outcome.exception}: {re.sub(r'[0-9]+', '#', message)[:140]}"


def one_line(outcome: Outcome) -> str:
    where = f"  [{outcome.frame}]" if outcome.frame else ""
    return f"{outcome.exception}: {outcome.message[:140]}{where}"


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
