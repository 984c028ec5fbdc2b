"""DumpLogSegments' words, as data: what Kafka's own tool found in log, index and snapshot files.

The tool prints a section per file, one line per entry as ``name: value`` pairs, and its complaints in between and at the end.
What is no known line is a complaint, so that a new kind of it cannot be missed. Two kinds are put aside: gaps between offsets,
which compaction makes (``gaps``), and the "gap" before the first offset of each file, which says nothing.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.apache_kafka import dump_log_segments

_SECTION = re.compile(r"Dumping (.+)")
_PAIR = re.compile(r"(\w+): (\S*)")
_GAPS_HEADING = re.compile(r"Non-consecutive offsets in (.+)")
_GAP = re.compile(r"\s+(-?\d+) is followed by (\d+)")
_INFORMATION = re.compile(r"Log starting offset: \d+|.* is empty\.|.* passed the sanity check\.|Snapshot end offset: .*")
_FILE_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class DumpedBatch(NamedTuple):
    fields: dict[str, str]
    """As the tool names them: baseOffset, lastOffset, count, producerId, position, size, compresscodec, isvalid ..."""
    record_offsets: list[int]


class DumpedFile(NamedTuple):
    path: Path
    batches: list[DumpedBatch]
    entries: list[dict[str, str]]
    """Of an index or a snapshot."""
    gaps: list[tuple[int, int]]


class Dump(NamedTuple):
    files: dict[Path, DumpedFile]
    complaints: list[str]

    def batches(self, partition_directory: Path) -> list[DumpedBatch]:
        """Of one partition, in the order of the files."""
        return [batch for path, file in self.files.items() if path.parent == partition_directory for batch in file.batches]


def dump_directory(directory: Path) -> Dump:
    """Everything that DumpLogSegments can read below a directory: every record, and the indexes against their logs."""
    paths = sorted(path for path in directory.rglob("*") if path.suffix in _FILE_SUFFIXES)
    return parse_dump(dump_log_segments(paths, records=True), paths)


def parse_dump(output: str, paths: Iterable[Path]) -> Dump:
    dump = Dump({path: DumpedFile(path, [], [], []) for path in paths}, [])
    current: DumpedFile | None = None
    for line in filter(None, map(str.rstrip, output.split("\n"))):
        if heading := _SECTION.fullmatch(line) or _GAPS_HEADING.fullmatch(line):
            current = dump.files[Path(heading[1])]
        elif current is None or not _take(current, line):
            dump.complaints.append(line)
    return dump


def _take(file: DumpedFile, line: str) -> bool:
    """False when the line is none that a sound file gives."""
    if gap := _GAP.fullmatch(line):
        before, after = int(gap[1]), int(gap[2])
        file.gaps.extend([(before, after)] if before >= 0 else [])
        return True
    if _INFORMATION.fullmatch(line):
        return True
    fields = dict(_PAIR.findall(line))
    if line.startswith("baseOffset: "):
        file.batches.append(DumpedBatch(fields, []))
    elif line.startswith("| offset: ") and file.batches:
        file.batches[-1].record_offsets.append(int(fields["offset"]))
    elif file.path.suffix != ".log" and line.startswith(("offset: ", "timestamp: ", "version: ", "producerId: ")):
        file.entries.append(fields)
    else:
        return False
    return True
