"""What a path given by the user is: a data directory, a partition's directory, or one of their files."""

from typing import NamedTuple

from tidelog.log import names
from tidelog.log.errors import LogError
from tidelog.log.inspection.directory_facts import CHECKPOINTS, DirectoryFacts, PartitionFacts, read_directory_facts
from tidelog.log.inspection.layout import DAMAGED_SUFFIX
from tidelog.ports.disk import Disk

_SMALL_FILES = (
    names.LEADER_EPOCH_CHECKPOINT,
    names.DURABLE_MARKS,
    names.META_PROPERTIES,
    names.PARTITION_METADATA,
    *CHECKPOINTS,
)
_DATA_DIRECTORY_FILES = frozenset((names.META_PROPERTIES, names.DURABLE_MARKS, *CHECKPOINTS))


class UnknownTarget(LogError):
    """The path is nothing that these tools know."""


class FileTarget(NamedTuple):
    path: str
    kind: str
    """A segment file's suffix, or the whole name of a small file."""
    base_offset: int


class PartitionTarget(NamedTuple):
    path: str
    data_directory: str | None
    """The data directory that it lies in; None for a copy that lies elsewhere."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class DirectoryTarget(NamedTuple):
    path: str
    partitions: list[PartitionTarget]


Target = FileTarget | PartitionTarget | DirectoryTarget


def recognise(disk: Disk, path: str) -> Target:
    """``path``: absolute, without a slash at its end. UnknownTarget says why it is none of them; OSError if it cannot be read."""
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
        f"{path} is no data directory: it has no {names.META_PROPERTIES}, and no directory such as orders-0 in it"
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
    """``directory``: what was read of its data directory already."""
    if directory is None and partition.data_directory is not None:
        directory = read_directory_facts(disk, partition.data_directory)
    return PartitionFacts(partition.name) if directory is None else directory.of_partition(disk, partition.name)
