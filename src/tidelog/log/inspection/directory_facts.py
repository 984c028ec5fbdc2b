"""What the files of a data directory say of its partitions, read without changing any.

The same reading as a start's (directory_opening.py), but nothing here is removed or refused: what cannot be read becomes a
problem in the list, and counts as a start would count it.
"""

from dataclasses import dataclass, field

from tidelog.log import names
from tidelog.log.atomic_file import read_whole
from tidelog.log.checkpoints import read_meta_properties, read_offset_checkpoint, read_partition_metadata, was_cleanly_shut_down
from tidelog.log.durable_marks import Mark, decode_journal
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.inspection.findings import Finding, Severity
from tidelog.log.settings import LONG_MAX
from tidelog.ports.disk import Disk
from tidelog.records.topic_partition import TopicPartition

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
    names.CLEANER_CHECKPOINT: "the next start ignores it: compaction begins anew",
}


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """What is known of a partition beside its own files."""

    name: str
    log_start_offset: int = 0
    recovery_point: int = 0
    durable_mark: int | None = None
    """Everything below it was synced once; None when there is no data directory around that would say."""
    was_stopped_cleanly: bool = False
    has_marks: bool = False

    @property
    def rebuilt_from(self) -> int:
        """From this offset on the next start checks the log and rebuilds what is derived from it."""
        return LONG_MAX if self.was_stopped_cleanly or self.durable_mark is None else self.recovery_point


@dataclass(slots=True)
class DirectoryFacts:
    path: str
    cluster_id: str | None = None
    node_id: int | None = None
    offsets_by_file: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
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
    """Zeros when it is missing or unreadable, as a start takes it."""
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
                problem(names.DURABLE_MARKS, Severity.NOTE, damage, "the next start writes it anew from the frames before")
        except CorruptCheckpoint as error:
            problem(names.DURABLE_MARKS, Severity.DAMAGE, error, "the broker will not start: it cannot tell what was durable")
    facts.was_stopped_cleanly = was_cleanly_shut_down(disk, path)
    return facts
