"""What the demo prints: numbered steps, what each of them shows, and the proof as a table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from demo.proof import Claim

_PLAIN_WIDTH = 160


class Story:
    """Also a reporter of pipelines: what they say is shown while they run, and then gone."""

    def __init__(self) -> None:
        console = Console()
        self.console = console if console.is_terminal else Console(width=_PLAIN_WIDTH)
        self._steps = 0
        self._status: Status | None = None

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        self._steps += 1
        self.console.print(f"\n[bold cyan]{self._steps}  {escape(title)}[/]", highlight=False)
        with self.console.status("") as status:
            self._status = status
            yield
        self._status = None

    def say(self, text: str) -> None:
        self.console.print(f"   {escape(text)}", highlight=False, soft_wrap=True)

    def step(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))

    def progress(self, done: int, total: int | None, unit: str = "rows") -> None:
        self.step(f"{done:,} {unit}" if total is None else f"{done:,} of {total:,} {unit}")

    def prove(self, claims: Sequence[Claim]) -> None:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("claim")
        table.add_column("counted on one side")
        table.add_column("", justify="right")
        table.add_column("and on the other")
        table.add_column("", justify="right")
        table.add_column("")
        for claim in claims:
            verdict = "[green]agree[/]" if claim.holds else "[bold red]DIFFER[/]"
            numbers = (f"{claim.one_count:,}", claim.other, f"{claim.other_count:,}")
            table.add_row(claim.says, claim.one, *numbers, verdict)
        self.console.print(table, highlight=False)
