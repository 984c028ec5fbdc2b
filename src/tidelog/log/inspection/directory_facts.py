"""Reads what the files of a data directory say about its partitions, without changing anything.

``read_directory_facts`` reads what a start reads (directory_opening.py), but removes and refuses nothing: what cannot be read
becomes a problem in the list, and is treated as a start would treat it.

The layout of a partition is the set of files that its next start would use. A start finishes compaction's swaps first
(swap.py): a ``.log.swap`` replaces every segment that begins inside it. Files that are being removed or written (``.deleted``,
``.cleaned``, ``.tmp``) do not count. Files that a repair has set aside end in ``-damaged``, which neither Kafka nor a start
recognises.

A ``Finding`` says where something is wrong, what it is, and what it means for the operator.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tidelog.log import names
from tidelog.log.durability.checkpoints import (
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    read_whole,
    was_cleanly_shut_down,
)
from tidelog.log.durability.durable_marks import DurableMark, decode_journal
from tidelog.log.errors import CorruptCheckpoint, CorruptLog, LogError
from tidelog.log.segments.batch_scan import SCAN_CHUNK_BYTES, scan_headers
from tidelog.log.settings import LONG_MAX
from tidelog.ports.disk import Disk
from tidelog.records.topic_partition import TopicPartition


class Severity(StrEnum):
    DAMAGE = "damage"
    """Something is damaged that was once sound: bytes of the log, or an index to them."""
    NOTE = "note"
    """Something that a crash leaves and the next start repairs, or that merely looks odd."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    partition: str
    """The partition directory's name; "" for the data directory's own files."""
    path: str
    position: int | None
    """The byte in that file; None when the finding concerns the file as a whole."""
    offset: int | None
    problem: str
    meaning: str


OnFinding = Callable[[Finding], None]
# Called with the number of further bytes of log that have been read.
OnBytes = Callable[[int], None]


NO_TOPIC_ID = bytes(16)
CHECKPOINTS = (
    names.RECOVERY_POINT_CHECKPOINT,
    names.LOG_START_OFFSET_CHECKPOINT,
    names.HIGH_WATERMARK_CHECKPOINT,
    names.CLEANER_CHECKPOINT,
)
_MEANING_BY_CHECKPOINT = {
    names.RECOVERY_POINT_CHECKPOINT: "the next start ignores it and checks every log from its beginning",
    names.LOG_START_OFFSET_CHECKPOINT: "the broker will not start: deleted records would come back; restore it, or remove it",
    names.HIGH_WATERMARK_CHECKPOINT: "the next start ignores it: high watermarks begin at the log starts",
    names.CLEANER_CHECKPOINT: "the next start ignores it: compaction starts from the beginning",
}


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The facts about a partition that come from outside of its own files."""

    name: str
    log_start_offset: int = 0
    recovery_point: int = 0
    durable_mark: int | None = None
    """Everything below this offset was synced; None when the partition is not in a data directory, which would know."""
    was_stopped_cleanly: bool = False
    has_marks: bool = False

    @property
    def rebuilt_from(self) -> int:
        """The next start checks the log from this offset on, and rebuilds what is derived from it."""
        return LONG_MAX if self.was_stopped_cleanly or self.durable_mark is None else self.recovery_point


@dataclass(slots=True)
class DirectoryFacts:
    path: str
    cluster_id: str | None = None
    node_id: int | None = None
    offsets_by_file: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    marks: dict[str, DurableMark] = field(default_factory=dict)
    has_marks: bool = False
    was_stopped_cleanly: bool = False
    problems: list[Finding] = field(default_factory=list)

    def offset(self, file_name: str, key: TopicPartition) -> int | None:
        return self.offsets_by_file[file_name].get(key)

    def of_partition(self, disk: Disk, name: str) -> PartitionFacts:
        parsed = names.parse_partition_directory_name(name)
        if parsed is None or parsed.state:
            return PartitionFacts(name)
        key = parsed.topic, parsed.partition
        recovery_point = self.offset(names.RECOVERY_POINT_CHECKPOINT, key) or 0
        mark = self.mark(name, read_topic_id(disk, names.join(self.path, name)))
        return PartitionFacts(
            name=name,
            log_start_offset=self.offset(names.LOG_START_OFFSET_CHECKPOINT, key) or 0,
            recovery_point=recovery_point,
            durable_mark=max(mark or 0, recovery_point),
            was_stopped_cleanly=self.was_stopped_cleanly,
            has_marks=self.has_marks,
        )

    def mark(self, name: str, topic_id: bytes) -> int | None:
        found = self.marks.get(name)
        return found.offset if found is not None and found.topic_id == topic_id else None


def read_topic_id(disk: Disk, directory: str) -> bytes:
    """Read the topic id. Returns zeros when it is missing or unreadable, as a start does."""
    try:
        return read_partition_metadata(disk, names.join(directory, names.PARTITION_METADATA)) or NO_TOPIC_ID
    except CorruptCheckpoint:
        return NO_TOPIC_ID


def read_directory_facts(disk: Disk, path: str) -> DirectoryFacts:
    facts = DirectoryFacts(path)

    def problem(file_name: str, severity: Severity, error: object, meaning: str) -> None:
        facts.problems.append(Finding(severity, "", names.join(path, file_name), None, None, str(error), meaning))

    try:
        meta = read_meta_properties(disk, names.join(path, names.META_PROPERTIES))
        if meta is not None:
            facts.cluster_id, facts.node_id = meta.cluster_id, meta.node_id
    except CorruptCheckpoint as error:
        problem(
            names.META_PROPERTIES, Severity.DAMAGE, error, "the broker will not start: it cannot tell whose directory this is"
        )
    for file_name in CHECKPOINTS:
        try:
            facts.offsets_by_file[file_name] = read_offset_checkpoint(disk, names.join(path, file_name))
        except CorruptCheckpoint as error:
            facts.offsets_by_file[file_name] = {}
            problem(file_name, Severity.DAMAGE, error, _MEANING_BY_CHECKPOINT[file_name])
    marks_path = names.join(path, names.DURABLE_MARKS)
    journal = read_whole(disk, marks_path)
    if journal is not None:
        facts.has_marks = True
        try:
            facts.marks, damage = decode_journal(journal, marks_path)
            if damage is not None:
                problem(names.DURABLE_MARKS, Severity.NOTE, damage, "the next start rewrites it from the frames before")
        except CorruptCheckpoint as error:
            problem(names.DURABLE_MARKS, Severity.DAMAGE, error, "the broker will not start: it cannot tell what was durable")
    facts.was_stopped_cleanly = was_cleanly_shut_down(disk, path)
    return facts


DAMAGED_SUFFIX = "-damaged"


class SegmentFiles(NamedTuple):
    base_offset: int
    stem: str
    """The directory and twenty digits; a suffix for each kind of file completes the path."""
    state: str
    """".swap" for compaction's result that a start will put in place, otherwise ""."""

    def path(self, suffix: str) -> str:
        return f"{self.stem}{suffix}{self.state}"

    @property
    def log_path(self) -> str:
        return self.path(names.LOG_SUFFIX)


def find_segments(disk: Disk, directory: str) -> list[SegmentFiles]:
    """The segments, ordered by base offset."""
    in_use: list[int] = []
    swaps: list[int] = []
    for name in disk.list_directory(directory):
        file = names.parse_offset_file_name(name)
        if file is not None and file.kind == names.LOG_SUFFIX:
            if not file.state:
                in_use.append(file.base_offset)
            elif file.state == names.SWAP_SUFFIX:
                swaps.append(file.base_offset)
    segments = []
    for base_offset in swaps:
        segment = SegmentFiles(base_offset, names.segment_path(directory, base_offset, ""), names.SWAP_SUFFIX)
        end_offset = _end_offset(disk, segment)
        in_use = [other for other in in_use if not base_offset <= other < end_offset]
        segments.append(segment)
    segments += [SegmentFiles(base_offset, names.segment_path(directory, base_offset, ""), "") for base_offset in in_use]
    return sorted(segments)


def _end_offset(disk: Disk, segment: SegmentFiles) -> int:
    """Where the readable part of the swap file ends."""
    file = disk.open(segment.log_path, "read")
    end_offset = segment.base_offset + 1
    try:
        for _, header in scan_headers(file, 0, file.size(), SCAN_CHUNK_BYTES):
            end_offset = max(end_offset, header.next_offset)
    except CorruptLog:
        pass
    return end_offset


_SMALL_FILES = (
    names.LEADER_EPOCH_CHECKPOINT,
    names.DURABLE_MARKS,
    names.META_PROPERTIES,
    names.PARTITION_METADATA,
    *CHECKPOINTS,
)
_DATA_DIRECTORY_FILES = frozenset((names.META_PROPERTIES, names.DURABLE_MARKS, *CHECKPOINTS))


class UnknownTarget(LogError):
    """These tools do not know what the path is."""


class FileTarget(NamedTuple):
    path: str
    kind: str
    """The suffix of a segment's file, or the whole name of a small file."""
    base_offset: int


class PartitionTarget(NamedTuple):
    path: str
    data_directory: str | None
    """The data directory around it; None for a copy that lies elsewhere."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class DirectoryTarget(NamedTuple):
    path: str
    partitions: list[PartitionTarget]


Target = FileTarget | PartitionTarget | DirectoryTarget


def recognise(disk: Disk, path: str) -> Target:
    """Find out what ``path`` is: a data directory, a partition's directory, or one of their files. ``path`` is absolute and has
    no trailing slash. Raises UnknownTarget with the reason, or OSError if it cannot be read."""
    if not disk.exists(path):
        raise UnknownTarget(f"{path}: there is no such file or directory")
    if not disk.is_directory(path):
        return _recognise_file(path)
    found = disk.list_directory(path)
    if names.base_offsets_of(found, names.LOG_SUFFIX) or names.PARTITION_METADATA in found:
        return PartitionTarget(path, _data_directory_of(disk, path))
    partitions = [
        PartitionTarget(names.join(path, name), path)
        for name in found
        if (parsed := names.parse_partition_directory_name(name)) is not None
        and not parsed.state
        and disk.is_directory(names.join(path, name))
    ]
    if partitions or not _DATA_DIRECTORY_FILES.isdisjoint(found):
        return DirectoryTarget(path, partitions)
    data_directory = _data_directory_of(disk, path)
    if data_directory is not None:
        return PartitionTarget(path, data_directory)
    raise UnknownTarget(
        f"{path} is not a data directory: it contains neither {names.META_PROPERTIES} nor a directory such as orders-0"
    )


def _data_directory_of(disk: Disk, path: str) -> str | None:
    parent, _, name = path.rpartition("/")
    parsed = names.parse_partition_directory_name(name)
    if parsed is None or parsed.state or _DATA_DIRECTORY_FILES.isdisjoint(disk.list_directory(parent or "/")):
        return None
    return parent or "/"


def _recognise_file(path: str) -> FileTarget:
    name = path.rpartition("/")[2]
    if name in _SMALL_FILES:
        return FileTarget(path, name, 0)
    file = names.parse_offset_file_name(".".join(name.split(".")[:2]) if name.endswith(DAMAGED_SUFFIX) else name)
    if file is None:
        known = ", ".join(("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot", *_SMALL_FILES))
        raise UnknownTarget(f"{path} is not a file of a log; known are {known}")
    return FileTarget(path, file.kind, file.base_offset)


def facts_of(disk: Disk, partition: PartitionTarget, directory: DirectoryFacts | None = None) -> PartitionFacts:
    """``directory``: the facts of its data directory, if they were read already."""
    if directory is None and partition.data_directory is not None:
        directory = read_directory_facts(disk, partition.data_directory)
    return PartitionFacts(partition.name) if directory is None else directory.of_partition(disk, partition.name)
