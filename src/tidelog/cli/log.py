"""``tidelog log``: inspect data directories, verify them, and repair what a broker refuses to start with.

``dump`` and ``verify`` only read and take no lock, so they work next to a running broker; ``repair`` takes the data directory's
lock. All logic is in ``tidelog.log.inspection``; this module gives it the real disk and turns its results into text, tables and
exit codes.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from tidelog.cli.errors import ExitCode
from tidelog.cli.output import count_of, format_bytes, make_console, progress_of_bytes, say, show_table, tolerate_closed_pipe
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
from tidelog.log.inspection.dump import DumpOptions, Item, dump
from tidelog.log.inspection.repair import Repair, RepairPlan, lock_directory, read_facts_for_repair
from tidelog.log.inspection.verification import PartitionSummary, verify_file, verify_partition
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.ports.real_disk import RealDisk

app = typer.Typer(help="Inspect, verify and repair a data directory.", no_args_is_help=True)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A data directory, a partition's directory, or one of their files.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts, one document per line.")]


@app.command("dump", epilog="Example: tidelog log dump data/orders-0 --offset 1000 --limit 5 --records")
def dump_command(
    path: PathArgument,
    records: Annotated[bool, typer.Option("--records", help="Include the records of each batch.")] = False,
    offset: Annotated[int, typer.Option(min=0, help="Start with the batch that contains this offset.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many batches or entries.")] = None,
    width: Annotated[int, typer.Option(min=8, help="Show at most this many characters of a key or value.")] = 80,
    as_json: JsonOption = False,
) -> int:
    """Show what a file, a partition or a data directory contains. It only reads, so it may run next to a broker."""
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    found_damage, is_empty = False, True
    with tolerate_closed_pipe():
        for item in dump(disk, target, DumpOptions(records, offset, limit)):
            found_damage |= item["kind"] == "damage"
            is_empty &= item["kind"] == "segment"
            sys.stdout.write((json.dumps(item) if as_json else item_text(item, width)) + "\n")
        if is_empty and not as_json:
            sys.stdout.write(_nothing_to_show(target, offset) + "\n")
        elif isinstance(target, DirectoryTarget) and not as_json:
            sys.stdout.write(_hint_after_overview(target) + "\n")
        sys.stdout.flush()
    return ExitCode.FOUND if found_damage else 0


@app.command("verify", epilog="Example: tidelog log verify data")
def verify_command(
    path: PathArgument,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print damage only: nothing if everything is sound.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Check CRCs, order, indexes, snapshots and marks. It takes no lock and writes nothing, so it may run next to a broker.

    Exit code 0: sound. 3: damage was found. What a crash leaves behind and the next start cleans up is a note, not damage.
    """
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    output = _VerifyOutput(as_json, quiet)
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
    yes: Annotated[bool, typer.Option("--yes", help="Repair. Without this, only show what would be done and lost.")] = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also cut at damage below the recovery point, which does not prevent a partition from opening."
        ),
    ] = False,
    rebuild_indexes: Annotated[
        bool, typer.Option("--rebuild-indexes", help="Rebuild the indexes of a log that is itself intact.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Make a partition usable again that is offline because of damage below its durable mark.

    The log is cut at the damage; what is cut off is kept next to it, in files that end in -damaged. The broker must be stopped.
    """
    disk = RealDisk()
    target = recognise(disk, _absolute(path))
    data_directory, partitions = _what_to_repair(target)
    console = make_console()
    lock = lock_directory(disk, data_directory)
    is_left = False
    try:
        facts = read_facts_for_repair(disk, data_directory)
        if not partitions and not as_json:
            say(console, f"{data_directory} has no partitions, so there is nothing to repair.")
        with _progress(disk, partitions, "Checking", console) as on_bytes:
            for partition in partitions:
                repair = Repair(disk, RealClock(), RealRandomness(), data_directory, partition.name, lambda *_: None, on_bytes)
                of_partition = facts_of(disk, partition, facts)
                if rebuild_indexes:
                    outcome = _rebuild_indexes(repair, of_partition, find_segments(disk, partition.path), yes)
                else:
                    outcome = _cut(repair, of_partition, yes, deep)
                _show_outcome(console, outcome, as_json)
                is_left |= outcome.is_left
    finally:
        lock.release()
    return ExitCode.FOUND if is_left else 0


# -- dump ------------------------------------------------------------------------------------------------------------------------


def _nothing_to_show(target: Target, offset: int) -> str:
    if offset:
        return f"{target.path} contains nothing at or above offset {offset}."
    if isinstance(target, PartitionTarget):
        return f"{target.path} has no batches: nothing was written to this partition yet, or retention has removed it."
    return f"{target.path} is empty."


def _hint_after_overview(target: DirectoryTarget) -> str:
    if not target.partitions:
        return "There are no partitions yet. Creating a topic creates its directories here."
    return f"To see the batches of one: tidelog log dump {target.partitions[0].path}"


# -- verify ----------------------------------------------------------------------------------------------------------------------


def _what_to_verify(disk: RealDisk, target: Target) -> tuple[list[PartitionTarget], int | None, DirectoryFacts | None]:
    """The partitions, the only segment of interest if there is one, and the facts of their data directory."""
    only_segment = None
    if isinstance(target, FileTarget):
        directory = os.path.dirname(target.path)
        found = recognise(disk, directory)
        if names.parse_offset_file_name(os.path.basename(target.path)) is None or not isinstance(found, PartitionTarget):
            raise UnknownTarget(
                f"{target.path} cannot be verified by itself; to see what it contains: tidelog log dump {target.path}"
            )
        only_segment, target = target.base_offset, found
    partitions = target.partitions if isinstance(target, DirectoryTarget) else [target]
    data_directory = target.path if isinstance(target, DirectoryTarget) else target.data_directory
    return partitions, only_segment, None if data_directory is None else read_directory_facts(disk, data_directory)


class _VerifyOutput:
    """Prints findings as they come, then a table and a verdict; or everything as JSON."""

    def __init__(self, as_json: bool, is_quiet: bool) -> None:
        self.console = make_console()
        self._is_quiet = is_quiet
        self._as_json = as_json
        self._summaries: list[PartitionSummary] = []
        self._damage_count = 0
        self._note_count = 0

    def on_finding(self, finding: Finding) -> None:
        is_damage = finding.severity is Severity.DAMAGE
        self._damage_count += is_damage
        self._note_count += not is_damage
        if self._is_quiet and not is_damage:
            return
        if self._as_json:
            self._write({"kind": "finding", **asdict(finding)})
        else:
            say(self.console, finding_text(finding), "red" if is_damage else "yellow")

    def on_summary(self, summary: PartitionSummary) -> None:
        self._summaries.append(summary)
        if self._as_json and not (self._is_quiet and summary.is_sound):
            self._write({"kind": "partition", **asdict(summary), "is_sound": summary.is_sound})

    def finish(self, path: str) -> int:
        is_sound = not self._damage_count
        if self._is_quiet and is_sound:
            return ExitCode.SUCCESS
        if self._as_json:
            self._write(
                {"kind": "result", "is_sound": is_sound, "damage_count": self._damage_count, "note_count": self._note_count}
            )
        else:
            if self._summaries:
                self._show_table()
            notes = f" ({count_of(self._note_count, 'note')})" if self._note_count else ""
            verdict = "sound" if is_sound else f"{count_of(self._damage_count, 'damaged place')} found"
            say(self.console, f"{path}: {verdict}{notes}. Nothing was locked or written.", "green" if is_sound else "red")
        return ExitCode.SUCCESS if is_sound else ExitCode.FOUND

    def _show_table(self) -> None:
        rows = [
            (
                each.name,
                each.segments,
                format_bytes(each.size_bytes),
                each.records,
                each.start_offset,
                each.end_offset,
                "unknown" if each.durable_mark is None else each.durable_mark,
                "sound" if each.is_sound else f"damaged ({each.damage_count})",
            )
            for each in self._summaries
        ]
        show_table(self.console, ("Partition", "Segments", "Size", "Records", "Start", "End", "Durable", "Result"), rows)

    def _write(self, document: dict[str, object]) -> None:
        sys.stdout.write(json.dumps(document) + "\n")


# -- repair ----------------------------------------------------------------------------------------------------------------------


def _what_to_repair(target: Target) -> tuple[str, list[PartitionTarget]]:
    if isinstance(target, FileTarget):
        raise UnknownTarget(f"{target.path} is a file; give the directory of its partition")
    if isinstance(target, DirectoryTarget):
        return target.path, target.partitions
    if target.data_directory is None:
        raise UnknownTarget(f"{target.path} is not in a data directory, so nothing says which part of it was durable")
    return target.data_directory, [target]


class RepairOutcome(NamedTuple):
    """What was done to a partition, or would be. ``is_left`` means that it still needs a repair."""

    partition: str
    did: str
    is_left: bool
    report: list[str]
    style: str = ""


def _cut(repair: Repair, facts: PartitionFacts, yes: bool, deep: bool) -> RepairOutcome:
    plan = repair.plan(facts, deep=deep)
    lines = plan_text(plan)
    if not plan.is_needed or not yes:
        return RepairOutcome(facts.name, "nothing", plan.is_needed, lines)
    log = repair.cut(facts, deep=deep)
    lines.append(f"{facts.name}: repaired. It now ends at offset {log.log_end_offset}, and the next start opens it.")
    lines += [f"  kept: {path}" for path in repair.set_aside]
    return RepairOutcome(facts.name, "cut", False, lines, "green")


def _rebuild_indexes(repair: Repair, facts: PartitionFacts, segments: list[SegmentFiles], yes: bool) -> RepairOutcome:
    if not yes:
        plan = repair.plan(facts, deep=True)
        if plan.is_needed:
            lines = [f"{facts.name}: the log itself is damaged; repair it before its indexes.", *plan_text(plan)]
            return RepairOutcome(facts.name, "nothing", True, lines, "red")
        count = count_of(len(segments), "segment")
        line = f"{facts.name}: the indexes of {count} would be rebuilt; nothing is lost. Add --yes."
        return RepairOutcome(facts.name, "nothing", False, [line])
    log = repair.rebuild_indexes(facts)
    line = f"{facts.name}: indexes rebuilt, {count_of(len(log.segments), 'segment')} up to offset {log.log_end_offset}."
    return RepairOutcome(facts.name, "rebuilt indexes", False, [line], "green")


def _show_outcome(console: Console, outcome: RepairOutcome, as_json: bool) -> None:
    if as_json:
        document = {"kind": "partition", **outcome._asdict()}
        del document["style"]
        sys.stdout.write(json.dumps(document) + "\n")
        return
    for line in outcome.report:
        say(console, line, outcome.style)


# -- output ----------------------------------------------------------------------------------------------------------------------


def _absolute(path: str) -> str:
    return os.path.abspath(path)


@contextmanager
def _progress(disk: RealDisk, partitions: list[PartitionTarget], title: str, console: Console) -> Iterator[OnBytes]:
    """A progress bar over the bytes of all logs, on a terminal, if there are enough of them."""
    total = 0
    if console.is_terminal:
        total = sum(
            disk.file_size(segment.log_path) for partition in partitions for segment in find_segments(disk, partition.path)
        )
    with progress_of_bytes(title, total) as on_bytes:
        yield on_bytes


# -- text ------------------------------------------------------------------------------------------------------------------------


def item_text(item: Item, width: int) -> str:
    """Format an item as one line; ``width`` bounds each key and value."""
    kind = item["kind"]
    if kind == "batch":
        return _batch_text(item)
    if kind == "record":
        return _record_text(item, width)
    if kind == "segment":
        return f"{item['path']}: {format_bytes(_int(item['size_bytes']))}"
    if kind == "damage":
        at = "" if item["position"] is None else f" at byte {item['position']} ({item['bytes_left']} bytes before its end)"
        return f"DAMAGE: {item['path']}{at}: {item['reason']}"
    fields = (f"{name.replace('_', ' ')} {_plain(value)}" for name, value in item.items() if name != "kind")
    return f"{kind}: {', '.join(fields)}"


def _batch_text(item: Item) -> str:
    parts = [
        f"offsets {item['base_offset']}..{item['last_offset']}",
        count_of(_int(item["records"]), "record"),
        f"at {item['position']}",
        f"{item['size_bytes']} B",
        f"leader epoch {item['leader_epoch']}",
    ]
    if _int(item["producer_id"]) >= 0:
        sequences = f" sequences {item['base_sequence']}..{item['last_sequence']}" if _int(item["base_sequence"]) >= 0 else ""
        parts.append(f"producer {item['producer_id']} epoch {item['producer_epoch']}{sequences}")
    parts.append("uncompressed" if item["compression"] == "none" else str(item["compression"]))
    parts.append(f"{item['timestamp_type']} {item['max_timestamp']} ({item['max_timestamp_ms']} ms)")
    if item["is_transactional"]:
        parts.append("transactional")
    if item["is_control"]:
        parts.append(f"control {item['control_type']}")
    if item["delete_horizon_ms"] is not None:
        parts.append(f"delete horizon {item['delete_horizon_ms']} ms")
    parts.append("CRC valid" if item["crc_is_valid"] else "CRC INVALID")
    return ", ".join(parts)


def _record_text(item: Item, width: int) -> str:
    parts = [f"  offset {item['offset']}", f"{item['timestamp']} ({item['timestamp_ms']} ms)"]
    if "control_type" in item:
        return ", ".join((*parts, f"control {item['control_type']}"))
    parts += [f"key {_content(item, 'key', width)}", f"value {_content(item, 'value', width)}"]
    headers = item["headers"]
    if isinstance(headers, list) and headers:
        parts.append(
            "headers " + ", ".join(f"{_bounded(header['name'], width)}={_content(header, 'value', width)}" for header in headers)
        )
    return ", ".join(parts)


def _content(item: Mapping[str, object], name: str, width: int) -> str:
    if f"{name}_hex" in item:
        digits = str(item[f"{name}_hex"])
        return "0x" + (digits if len(digits) + 2 <= width else f"{digits[: max(2, width - 2)]}... ({len(digits) // 2} bytes)")
    content = item[name]
    return "null" if content is None else _bounded(str(content), width)


def _bounded(text: str, width: int) -> str:
    return repr(text) if len(text) <= width else f"{text[:width]!r}... ({len(text)} characters)"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _int(value: object) -> int:
    assert isinstance(value, int), value
    return value


def finding_text(finding: Finding) -> str:
    at = "" if finding.position is None else f" at byte {finding.position}"
    near = "" if finding.offset is None else f", offset {finding.offset}"
    # The error of a checkpoint already names its file.
    place = "" if finding.problem.startswith(finding.path) else f"{finding.path}{at}{near}: "
    return f"{finding.severity}: {place}{finding.problem}. {finding.meaning[:1].upper()}{finding.meaning[1:]}."


def plan_text(plan: RepairPlan) -> list[str]:
    """Describe what is wrong, what ``--yes`` would do and cost, and what else could be done."""
    name = plan.facts.name
    if plan.problem is None:
        return [f"{name}: there is nothing to repair; the log is sound from the recovery point {plan.facts.recovery_point} on."]
    lines = [f"{name}: {plan.path} at byte {plan.position}, offset {plan.cut_offset}: {plan.problem}."]
    if plan.is_torn_tail:
        lines.append(f"  This torn tail above the durable mark {plan.durable_mark} needs no repair: the next start cuts it.")
        return lines
    lines.append(f"  Everything below offset {plan.durable_mark} was acknowledged as durable.")
    if plan.lost_offsets:
        first_lost = max(plan.cut_offset, plan.facts.log_start_offset)
        lines.append(
            f"  A repair loses for good: {count_of(plan.lost_offsets, 'offset')}, {first_lost} to {plan.durable_mark - 1}."
        )
    if plan.cut_bytes:
        lines.append(f"  It cuts the last {plan.cut_bytes} bytes of {plan.path}.")
    if plan.later_segments:
        first, last = plan.later_segments[0].log_path, plan.later_segments[-1].log_path
        lines.append(
            f"  It removes {count_of(len(plan.later_segments), 'segment')}, {plan.later_bytes} bytes, {first} to {last}."
        )
    lines.append(
        f"  The log then ends at offset {plan.cut_offset}. What is cut off is kept next to it, in files that end in -damaged."
    )
    lines.append("  Either restore the file from a backup or another replica, and no offset is lost; or cut it with --yes.")
    return lines
