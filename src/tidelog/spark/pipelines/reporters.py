"""Shows a run: a bar on a terminal, occasional lines elsewhere, both on standard error. The outcome is printed.

Lines appear at the start of a step and at most every ten seconds, so that the log of a night's run stays readable. With
``--json`` nothing appears but the outcome: a script reads standard error as JSON too.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from tidelog.spark.pipelines.pipeline import PipelineOutcome, Reporter, Silent

LINE_EVERY_SECONDS = 10.0


class PlainReporter:
    """Prints one line each, for logs and pipes."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._next_line = 0.0
        self._last = ""

    def step(self, text: str) -> None:
        self._say(text)
        self._next_line = self._clock() + LINE_EVERY_SECONDS

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        is_end = total is not None and done >= total
        if is_end or self._clock() >= self._next_line:
            self._say(progress_text(done, total, unit))
            self._next_line = self._clock() + LINE_EVERY_SECONDS

    def _say(self, line: str) -> None:
        if line != self._last:
            self._out.write(f"{line}\n")
            self._out.flush()
        self._last = line


class BarReporter:
    """Shows the step, a bar and a count; earlier steps stay as lines above."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None

    def step(self, text: str) -> None:
        if self._task is not None:
            done = self._bar.tasks[-1]
            self._bar.console.print(f"[green]✓[/] {done.description} [dim]{done.fields['count']}[/]", highlight=False)
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(escape(text), total=None, count="")

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        if self._task is None:
            self.step("")
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=total, count=progress_text(done, total, unit))


def progress_text(done: int, total: int | None, unit: str) -> str:
    if not total:
        return f"{done:,} {unit}"
    return f"{done:,} of {total:,} {unit} ({100 * min(done, total) // total} %)"


@contextmanager
def reporter(*, is_silent: bool = False) -> Iterator[Reporter]:
    if is_silent:
        yield Silent()
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainReporter(sys.stderr)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield BarReporter(bar)


def show_outcome(name: str, outcome: PipelineOutcome, *, as_json: bool) -> None:
    if as_json:
        document = {"pipeline": name, "summary": outcome.summary, "figures": outcome.figures, "exit_code": outcome.exit_code}
        sys.stdout.write(json.dumps(document) + "\n")
        return
    texts = {figure: figure_text(value) for figure, value in outcome.figures.items()}
    names_width = max(map(len, texts), default=0)
    numbers = [len(text) for figure, text in texts.items() if not isinstance(outcome.figures[figure], str)]
    lines = [outcome.summary, *([""] if texts else [])]
    for figure, text in texts.items():
        # Numbers are aligned to the right. A text, such as the path of a table, stays whole: somebody copies it.
        width = 0 if isinstance(outcome.figures[figure], str) else max(numbers)
        lines.append(f"  {figure:<{names_width}}  {text:>{width}}")
    sys.stdout.write("\n".join(lines) + "\n")


def figure_text(value: int | float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
