"""``tidelog log``: look into data directories, check them, and repair what a start refuses.

Dump and verify read only and take no lock, so they work beside a running broker; repair takes the data directory's lock. All
logic is in ``tidelog.log.inspection``; here it gets the real disk, and its results become text, tables and exit codes.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tidelog.cli.log_text import finding_text, item_text, plan_text
from tidelog.cli.output import count_of, format_bytes, make_console, say
from tidelog.log import names
from tidelog.log.inspection.directory_facts import (
    DirectoryFacts,
    DirectoryTarget,
    FileTarget,
    Finding,
    OnBytes,
    PartitionFacts,
    PartitionTarget,
    SegmentFiles,
    Severity,
    Target,
    UnknownTarget,
    facts_of,
    find_segments,
    read_directory_facts,
    recognise,
)
from tidelog.log.inspection.dump import DumpOptions, dump
from tidelog.log.inspection.repair import Repair, lock_directory, read_facts_for_repair
from tidelog.log.inspection.verification import PartitionSummary, verify_file, verify_partition
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk

EXIT_DAMAGE = 1
# Shorter work is over before a bar could be read.
_PROGRESS_BYTES_MIN = 64 << 20
_PROGRESS_STEP_BYTES = 4 << 20

app = typer.Typer(help="Look into a data directory, check it, repair it.", no_args_is_help=True)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A data directory, a partition's directory, or one of their files.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for scripts.")]


@app.command("dump", epilog="Example: tidelog log dump data/orders-0 --offset 1000 --limit 5 --records")
def dump_command(
    path: PathArgument,
    records: Annotated[bool, typer.Option("--records", help="Also the records of each batch.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="Begin with the batch that holds this offset.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many batches or entries.")] = None,
    width: Annotated[int, typer.Option(min=8, help="Show at most this much of a key or value.")] = 80,
    as_json: JsonOption = False,
) -> int:
    """Show what a file, a partition or a data directory holds. Reads only, beside a running broker too."""
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    found_damage, is_empty = False, True
    try:
        for item in dump(disk, target, DumpOptions(records, offset, limit)):
            found_damage |= item["kind"] == "damage"
            is_empty &= item["kind"] == "segment"
            sys.stdout.write((json.dumps(item) if as_json else item_text(item, width)) + "\n")
        if is_empty and not as_json:
            sys.stdout.write(_nothing_to_show(target, offset) + "\n")
        elif isinstance(target, DirectoryTarget) and not as_json:
            sys.stdout.write(_hint_after_overview(target) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # ``| head`` has seen enough. Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_DAMAGE if found_damage else 0


@app.command("verify", epilog="Example: tidelog log verify data")
def verify_command(path: PathArgument, as_json: JsonOption = False) -> int:
    """Check CRCs, order, indexes, snapshots and marks. Takes no lock and writes nothing: it may run beside a broker.

    Exit code 0: sound. 1: damage was found. What a crash leaves and the next start puts in order is a note, not damage.
    """
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    output = _VerifyOutput(as_json)
    if isinstance(target, FileTarget) and target.kind not in names.SEGMENT_SUFFIXES:
        finding = verify_file(disk, target)
        if finding is not None:
            output.on_finding(finding)
        return output.finish(target.path)
    partitions, only_segment, facts = _what_to_verify(disk, target)
    for problem in facts.problems if facts is not None else ():
        output.on_finding(problem)
    with _progress(disk, partitions, "Verifying", output.console) as on_bytes:
        for partition in partitions:
            of_partition = facts_of(disk, partition, facts)
            output.on_summary(verify_partition(disk, partition.path, of_partition, output.on_finding, on_bytes, only_segment))
    return output.finish(target.path)


@app.command("repair", epilog="Example: tidelog log repair data/orders-0 (shows what would be lost), then the same with --yes")
def repair_command(
    path: PathArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it: only show what would be done and lost.")] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also cut at damage below the recovery point, which does not keep a partition from opening."),
    ] = False,
    rebuild_indexes: Annotated[
        bool, typer.Option("--rebuild-indexes", help="Rebuild the indexes of a log that is itself sound.")
    ] = False,
) -> int:
    """Make a partition usable again that is offline because of damage below its durable mark.

    The log is cut at the damage; what is cut stays beside it, in files that end in -damaged. The broker must be stopped.
    """
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    data_directory, partitions = _what_to_repair(target)
    console = make_console()
    lock = lock_directory(disk, data_directory)
    is_left = False
    try:
        facts = read_facts_for_repair(disk, data_directory)
        if not partitions:
            say(console, f"{data_directory} has no partitions: nothing to repair.")
        with _progress(disk, partitions, "Checking", console) as on_bytes:
            for partition in partitions:
                repair = Repair(disk, RealClock(), RealRandomness(), data_directory, partition.name, lambda *_: None, on_bytes)
                of_partition = facts_of(disk, partition, facts)
                if rebuild_indexes:
                    is_left |= _rebuild_indexes(console, repair, of_partition, find_segments(disk, partition.path), yes)
                else:
                    is_left |= _cut(console, repair, of_partition, yes, deep)
    finally:
        lock.release()
    return EXIT_DAMAGE if is_left else 0


# -- dump ------------------------------------------------------------------------------------------------------------------------


def _nothing_to_show(target: Target, offset: int) -> str:
    if offset:
        return f"{target.path} has nothing at or above offset {offset}."
    if isinstance(target, PartitionTarget):
        return f"{target.path} has no batches yet: nothing was written to this partition, or retention has removed it."
    return f"{target.path} is empty."


def _hint_after_overview(target: DirectoryTarget) -> str:
    if not target.partitions:
        return "There are no partitions yet: a topic that is created gets its directories here."
    return f"For the batches of one: tidelog log dump {target.partitions[0].path}"


# -- verify ----------------------------------------------------------------------------------------------------------------------


def _what_to_verify(disk: RealDisk, target: Target) -> tuple[list[PartitionTarget], int | None, DirectoryFacts | None]:
    """The partitions, the one segment of interest, and what their data directory says."""
    only_segment = None
    if isinstance(target, FileTarget):
        directory = os.path.dirname(target.path)
        found = recognise(disk, directory)
        if names.parse_offset_file_name(os.path.basename(target.path)) is None or not isinstance(found, PartitionTarget):
            raise UnknownTarget(f"{target.path} cannot be verified by itself: see what it holds with: tidelog log dump")
        only_segment, target = target.base_offset, found
    partitions = target.partitions if isinstance(target, DirectoryTarget) else [target]
    data_directory = target.path if isinstance(target, DirectoryTarget) else target.data_directory
    return partitions, only_segment, None if data_directory is None else read_directory_facts(disk, data_directory)


class _VerifyOutput:
    """Findings as they come, then a table and a verdict; or everything as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.console = make_console()
        self._as_json = as_json
        self._summaries: list[PartitionSummary] = []
        self._damage_count = 0
        self._note_count = 0

    def on_finding(self, finding: Finding) -> None:
        is_damage = finding.severity is Severity.DAMAGE
        self._damage_count += is_damage
        self._note_count += not is_damage
        if self._as_json:
            self._write({"kind": "finding", **asdict(finding)})
        else:
            say(self.console, finding_text(finding), "red" if is_damage else "yellow")

    def on_summary(self, summary: PartitionSummary) -> None:
        self._summaries.append(summary)
        if self._as_json:
            self._write({"kind": "partition", **asdict(summary), "is_sound": summary.is_sound})

    def finish(self, path: str) -> int:
        is_sound = not self._damage_count
        if self._as_json:
            self._write(
                {"kind": "result", "is_sound": is_sound, "damage_count": self._damage_count, "note_count": self._note_count}
            )
        else:
            if self._summaries:
                self.console.print(self._table())
            notes = f" ({count_of(self._note_count, 'note')})" if self._note_count else ""
            verdict = "sound" if is_sound else f"{count_of(self._damage_count, 'damaged place')} found"
            say(self.console, f"{path}: {verdict}{notes}. Nothing was locked or written.", "green" if is_sound else "red")
        return 0 if is_sound else EXIT_DAMAGE

    def _table(self) -> Table:
        table = Table(box=SIMPLE)
        # A narrow terminal must not squeeze the name out.
        table.add_column("Partition", overflow="fold", min_width=12)
        for title in ("Segments", "Size", "Records", "Start", "End", "Durable"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("Result", no_wrap=True)
        for summary in self._summaries:
            table.add_row(
                summary.name,
                str(summary.segments),
                format_bytes(summary.size_bytes),
                str(summary.records),
                str(summary.start_offset),
                str(summary.end_offset),
                "unknown" if summary.durable_mark is None else str(summary.durable_mark),
                "sound" if summary.is_sound else f"damaged ({summary.damage_count})",
            )
        return table

    def _write(self, document: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(document) + "\n")


# -- repair ----------------------------------------------------------------------------------------------------------------------


def _what_to_repair(target: Target) -> tuple[str, list[PartitionTarget]]:
    if isinstance(target, FileTarget):
        raise UnknownTarget(f"{target.path} is a file: give the directory of its partition")
    if isinstance(target, DirectoryTarget):
        return target.path, target.partitions
    if target.data_directory is None:
        raise UnknownTarget(f"{target.path} lies in no data directory, so nothing says what of it was durable")
    return target.data_directory, [target]


def _cut(console: Console, repair: Repair, facts: PartitionFacts, yes: bool, deep: bool) -> bool:
    """True when something is left to be repaired."""
    plan = repair.plan(facts, deep=deep)
    for line in plan_text(plan):
        say(console, line)
    if not plan.is_needed or not yes:
        return plan.is_needed
    log = repair.cut(facts, deep=deep)
    say(console, f"{facts.name}: repaired. It ends at offset {log.log_end_offset}; the next start opens it.", "green")
    for path in repair.set_aside:
        say(console, f"  kept: {path}")
    return False


def _rebuild_indexes(console: Console, repair: Repair, facts: PartitionFacts, segments: list[SegmentFiles], yes: bool) -> bool:
    if not yes:
        plan = repair.plan(facts, deep=True)
        if plan.is_needed:
            say(console, f"{facts.name}: the log itself is damaged, and comes before its indexes.", "red")
            for line in plan_text(plan):
                say(console, line)
            return True
        say(
            console,
            f"{facts.name}: the indexes of {count_of(len(segments), 'segment')} would be rebuilt; nothing is lost. Add --yes.",
        )
        return False
    log = repair.rebuild_indexes(facts)
    say(
        console,
        f"{facts.name}: indexes rebuilt, {count_of(len(log.segments), 'segment')} up to offset {log.log_end_offset}.",
        "green",
    )
    return False


# -- output ----------------------------------------------------------------------------------------------------------------------


def _absolute(path: str) -> str:
    return os.path.abspath(path)


@contextmanager
def _progress(disk: RealDisk, partitions: list[PartitionTarget], title: str, console: Console) -> Iterator[OnBytes]:
    """A bar over the bytes of all logs, on a terminal, when there are enough of them."""
    total = 0
    if console.is_terminal:
        total = sum(
            disk.file_size(segment.log_path) for partition in partitions for segment in find_segments(disk, partition.path)
        )
    if total < _PROGRESS_BYTES_MIN:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        pending = 0

        def on_bytes(count: int) -> None:
            # The bar is redrawn ten times a second; telling it of every batch would cost more than reading them.
            nonlocal pending
            pending += count
            if pending >= _PROGRESS_STEP_BYTES:
                progress.advance(task, pending)
                pending = 0

        yield on_bytes
