"""The names of files and directories, as Kafka gives them.

A segment's files are named by its base offset in twenty digits and a suffix per kind: ``00000000000000000042.log``. A further
suffix tells what a file is on its way to: ``.cleaned`` (being written by compaction, worthless after a crash), ``.swap``
(compaction's result, complete: it replaces the originals even after a crash), ``.deleted`` (renamed so that it no longer
counts, removed a little later).

A partition lives in ``<topic>-<partition>``. Before it is deleted it is renamed to ``<topic>-<partition>.<32 hex>-delete``;
Kafka uses ``-future`` (a copy being moved between directories) and ``-stray`` (no longer assigned) in the same way. A topic name
may itself hold dots and dashes, so these names are read from their end.
"""

from collections.abc import Iterable
from typing import NamedTuple

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_MARK = ".kafka_cleanshutdown"
LOCK_FILE = ".lock"
# Tidelog's own files; Kafka ignores them.
BROKER_EPOCH = "broker-epoch"
DURABLE_MARKS = "durable-marks"
DISK_RESERVE = "disk-reserve"
FAILED_SYNC_MARK = ".failed-sync"

# Kafka's limit: a topic name with its partition number and a "-delete" suffix must fit a file name of 255 bytes.
TOPIC_NAME_LENGTH_MAX = 249
DIRECTORY_NAME_LENGTH_MAX = 255
PARTITION_MAX = 2**31 - 1

_OFFSET_DIGITS = 20
_OFFSET_MAX = 2**63 - 1
_LEGAL_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_DIGITS = frozenset("0123456789")
_HEX_DIGITS = frozenset("0123456789abcdef")
_KINDS = frozenset((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX))
_STATES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
_DIRECTORY_STATES = ("delete", "future", "stray")


class OffsetFile(NamedTuple):
    """The parts of a file name such as ``00000000000000000042.index.swap``; ``state`` is "" for a file in use."""

    base_offset: int
    kind: str
    state: str


class PartitionDirectory(NamedTuple):
    """The parts of a partition directory's name; ``state`` is "" for one in use, otherwise "delete", "future" or "stray"."""

    topic: str
    partition: int
    unique_id: str
    state: str


def join(directory: str, name: str) -> str:
    return f"{directory}/{name}"


def segment_path(directory: str, base_offset: int, suffix: str) -> str:
    return f"{directory}/{base_offset:020d}{suffix}"


def strip_state(path: str) -> str:
    """The path without a ``.deleted``, ``.cleaned`` or ``.swap`` suffix."""
    for suffix in _STATES:
        if path.endswith(suffix):
            return path[: -len(suffix)]
    return path


def offset_file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def snapshot_file_name(offset: int) -> str:
    return f"{offset:020d}.snapshot"


def parse_offset_file_name(name: str) -> OffsetFile | None:
    """The parts of a segment's or snapshot's file name; None for any other file."""
    stem = strip_state(name)
    state = name[len(stem) :]
    digits = stem[:_OFFSET_DIGITS]
    kind = stem[_OFFSET_DIGITS:]
    if kind not in _KINDS or not _DIGITS.issuperset(digits):
        return None
    base_offset = int(digits)
    return OffsetFile(base_offset, kind, state) if base_offset <= _OFFSET_MAX else None


def base_offsets_of(names: Iterable[str], kind: str) -> list[int]:
    """The base offsets of the files of one kind that are in use, in order."""
    parsed = map(parse_offset_file_name, names)
    return sorted(file.base_offset for file in parsed if file is not None and file.kind == kind and not file.state)


def topic_name_problem(name: str) -> str | None:
    """The reason why ``name`` is not a valid topic name; None when it is valid."""
    if not name:
        return "a topic name cannot be empty"
    if name in (".", ".."):
        return f"a topic name cannot be {name!r}"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, this one has {len(name)}"
    illegal = next((character for character in name if character not in _LEGAL_TOPIC_CHARACTERS), None)
    if illegal is not None:
        return f"topic name {name!r} holds {illegal!r}: only ASCII letters, digits, '.', '_' and '-' are allowed"
    return None


def partition_directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def retired_directory_name(topic: str, partition: int, unique_id: bytes, state: str) -> str:
    """The new name of a directory that goes out of use: "delete" before its files are removed, "stray" when an operator should
    look at them. ``unique_id``: 16 random bytes."""
    suffix = f"-{partition}.{unique_id.hex()}-{state}"
    # Like Kafka, shorten the topic's name until the directory name fits; the unique id keeps two of them apart.
    return topic[: DIRECTORY_NAME_LENGTH_MAX - len(suffix)] + suffix


def parse_partition_directory_name(name: str) -> PartitionDirectory | None:
    """The parts of a partition directory's name; None for any other directory."""
    for state in _DIRECTORY_STATES:
        if name.endswith(f"-{state}"):
            stem, dot, unique_id = name[: -len(state) - 1].rpartition(".")
            if dot and len(unique_id) == 32 and _HEX_DIGITS.issuperset(unique_id):
                return _parse_topic_partition(stem, unique_id, state)
    return _parse_topic_partition(name, "", "")


def _parse_topic_partition(stem: str, unique_id: str, state: str) -> PartitionDirectory | None:
    topic, _, digits = stem.rpartition("-")
    if not digits or not _DIGITS.issuperset(digits) or topic_name_problem(topic) is not None:
        return None
    partition = int(digits)
    # Neither Tidelog nor Kafka writes "orders-03" for partition 3: accepting it would give two directories the same partition.
    if partition > PARTITION_MAX or str(partition) != digits:
        return None
    return PartitionDirectory(topic, partition, unique_id, state)
