"""The small text files of a data directory, in Kafka's formats, and how they are replaced.

Offset checkpoints (recovery point, log start, high watermark, cleaner): a version line "0", a line with the number of entries,
then ``<topic> <partition> <offset>`` per line. An empty file has no entries: Kafka creates one before it first writes it.

``meta.properties`` names the owner of the directory: ``version=1``, ``cluster.id``, ``node.id``, ``directory.id``, as Java
properties. ``partition.metadata`` holds a partition's topic id: ``version: 0`` and ``topic_id: <22 characters of base64url>``.
``.kafka_cleanshutdown`` exists only between a clean stop and the next start, and holds the broker's epoch as JSON.
``broker-epoch``, which Kafka does not have, holds the epoch of the last process also after a crash.

All of them are replaced as a whole. The bytes go to ``<path>.tmp``, are synced, and are renamed over the old file; then the
directory is synced, so the new bytes are durable when the write returns. A crash leaves the old file or the new one, and perhaps
a ``.tmp`` file, which means nothing and is overwritten. A file that breaks its format was damaged: it is refused, and the error
names the line. ``CheckpointWriter`` writes an offset checkpoint on the executor; requests during a write share the next one.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tidelog.log.durability.disk_reserve import DiskReserve
from tidelog.log.environment import Report
from tidelog.log.errors import CorruptCheckpoint
from tidelog.log.names import BROKER_EPOCH, CLEAN_SHUTDOWN_MARK, PARTITION_MAX, TEMPORARY_SUFFIX, join, topic_name_problem
from tidelog.ports.disk import Disk, DiskFile
from tidelog.ports.executor import Completion, Executor
from tidelog.records.topic_partition import TopicPartition


class StagedFile:
    """The replacement of a file in two steps, for callers that sync many at once: ``stage``, sync, ``publish``, sync."""

    __slots__ = ("_data", "_disk", "path")

    def __init__(self, disk: Disk, path: str, data: bytes) -> None:
        self._disk = disk
        self._data = data
        self.path = path

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0] or "/"

    def stage(self) -> DiskFile:
        """Write the bytes to a temporary file; they must be durable before ``publish``."""
        file = self._disk.open(self.path + TEMPORARY_SUFFIX, "create")
        # A file that a crash left here may be longer than the new bytes.
        file.truncate(0)
        file.write(0, [self._data])
        return file

    def publish(self) -> None:
        """Rename the temporary file over the old one; durable with the next sync of the directory."""
        self._disk.rename(self.path + TEMPORARY_SUFFIX, self.path)


def write_atomically(disk: Disk, path: str, data: bytes) -> None:
    """Block until ``data`` is durable under ``path``. On an error the old file may or may not have been replaced."""
    staged = StagedFile(disk, path, data)
    staged.stage().sync()
    staged.publish()
    disk.sync_directory(staged.directory)


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return all bytes of a file; None if it does not exist."""
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return None
    return file.read(0, file.size())


CHECKPOINT_VERSION = "0"
META_PROPERTIES_VERSION = "1"
PARTITION_METADATA_VERSION = "0"

_OFFSET_MAX = 2**63 - 1
_ID_BYTES = 16
_NODE_ID_MAX = 2**31 - 1
# The characters that Java escapes with a backslash.
_ESCAPED_IN_PROPERTIES = frozenset("\\=:#! ")


class MetaProperties(NamedTuple):
    cluster_id: str
    node_id: int
    # None in a directory that was created before Kafka 3.7.
    directory_id: bytes | None


def read_offset_checkpoint(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Return the offsets by (topic, partition); empty if the file does not exist."""
    offsets: dict[TopicPartition, int] = {}
    for line, (topic, partition_text, offset_text) in read_checkpoint_rows(disk, path, ("topic", "partition", "offset")):
        problem = topic_name_problem(topic)
        if problem is not None:
            raise CorruptCheckpoint(f"{path}: line {line}: {problem}")
        key = topic, parse_number(path, line, "partition", partition_text, PARTITION_MAX)
        if key in offsets:
            raise CorruptCheckpoint(f"{path}: line {line}: {topic}-{partition_text} occurs twice")
        offsets[key] = parse_number(path, line, "offset", offset_text, _OFFSET_MAX)
    return offsets


def write_offset_checkpoint(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Blocks until it is durable."""
    rows = (f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))
    write_atomically(disk, path, format_checkpoint(rows, len(offsets)))


def format_checkpoint(rows: Iterable[str], count: int) -> bytes:
    return "\n".join((CHECKPOINT_VERSION, str(count), *rows, "")).encode()


def read_checkpoint_rows(disk: Disk, path: str, field_names: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    """The rows of a checkpoint as (line number, fields)."""
    lines = _read_lines(disk, path)
    if not lines:
        return []
    if lines[0] != CHECKPOINT_VERSION:
        raise CorruptCheckpoint(f"{path}: line 1: version {lines[0]!r} where only {CHECKPOINT_VERSION!r} is known")
    if len(lines) < 2:
        raise CorruptCheckpoint(f"{path}: line 2: the number of entries is missing")
    count = parse_number(path, 2, "number of entries", lines[1], _OFFSET_MAX)
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines[2:], start=3):
        fields = line.split()
        if len(fields) != len(field_names):
            raise CorruptCheckpoint(f"{path}: line {number}: {line!r} is not of the form '{' '.join(field_names)}'")
        rows.append((number, fields))
    if len(rows) != count:
        raise CorruptCheckpoint(f"{path}: line 2: the file should have {count} entries, but has {len(rows)}")
    return rows


def parse_number(path: str, line: int, what: str, text: str, maximum: int) -> int:
    """A number from 0 to ``maximum``, in plain digits."""
    # int() alone would also accept "1_000", "+1" and digits of other scripts; no number here has more than 19 digits.
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > maximum:
        raise CorruptCheckpoint(f"{path}: line {line}: {what} {text!r} is not a number from 0 to {maximum}")
    return int(text)


def read_meta_properties(disk: Disk, path: str) -> MetaProperties | None:
    """Return None if the file does not exist: the directory was never used."""
    if not disk.exists(path):
        return None
    values: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(_read_lines(disk, path), start=1):
        line = line.lstrip()
        if line and line[0] not in "#!":
            key, value = _parse_property(path, number, line)
            values[key] = number, value
    line_number, version = _property(path, values, "version")
    if version != META_PROPERTIES_VERSION:
        raise CorruptCheckpoint(
            f"{path}: line {line_number}: version {version!r} where only {META_PROPERTIES_VERSION!r} is known"
        )
    _, cluster_id = _property(path, values, "cluster.id")
    line_number, node_id_text = _property(path, values, "node.id")
    node_id = parse_number(path, line_number, "node.id", node_id_text, _NODE_ID_MAX)
    directory_id = None
    if "directory.id" in values:
        line_number, directory_id_text = values["directory.id"]
        directory_id = parse_id(path, line_number, "directory.id", directory_id_text)
    return MetaProperties(cluster_id, node_id, directory_id)


def write_meta_properties(disk: Disk, path: str, properties: MetaProperties) -> None:
    """Blocks until it is durable."""
    lines = ["#", f"cluster.id={_escape_property(properties.cluster_id)}"]
    if properties.directory_id is not None:
        lines.append(f"directory.id={format_id(properties.directory_id)}")
    lines += [f"node.id={properties.node_id}", f"version={META_PROPERTIES_VERSION}", ""]
    write_atomically(disk, path, "\n".join(lines).encode())


def read_partition_metadata(disk: Disk, path: str) -> bytes | None:
    """Return the topic id; None if the file does not exist."""
    if not disk.exists(path):
        return None
    lines = _read_lines(disk, path)
    if len(lines) != 2:
        raise CorruptCheckpoint(f"{path}: line {min(len(lines), 2) + 1}: expected a version and a topic id, on two lines")
    version = _parse_metadata_line(path, 1, "version", lines[0])
    if version != PARTITION_METADATA_VERSION:
        raise CorruptCheckpoint(f"{path}: line 1: version {version!r} where only {PARTITION_METADATA_VERSION!r} is known")
    return parse_id(path, 2, "topic_id", _parse_metadata_line(path, 2, "topic_id", lines[1]))


def format_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {format_id(topic_id)}".encode()


def write_partition_metadata(disk: Disk, path: str, topic_id: bytes) -> None:
    """Blocks until it is durable."""
    write_atomically(disk, path, format_partition_metadata(topic_id))


def was_cleanly_shut_down(disk: Disk, directory: str) -> bool:
    """Whether the last stop was clean. Only the file's presence counts, as in Kafka: older versions left it empty."""
    return disk.exists(join(directory, CLEAN_SHUTDOWN_MARK))


def clean_shutdown_epoch(disk: Disk, directory: str) -> int:
    """The broker epoch of the process that stopped cleanly; -1 if the last stop was not clean, or the mark does not say."""
    return _read_epoch(disk, join(directory, CLEAN_SHUTDOWN_MARK))


def _read_epoch(disk: Disk, path: str) -> int:
    if not disk.exists(path):
        return -1
    try:
        epoch = json.loads(read_whole(disk, path) or b"")["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def write_clean_shutdown(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Blocks until it is durable. Everything that the mark vouches for must be durable already."""
    _write_epoch(disk, join(directory, CLEAN_SHUTDOWN_MARK), broker_epoch)


def _write_epoch(disk: Disk, path: str, broker_epoch: int) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(disk, path, text.encode())


def remove_clean_shutdown(disk: Disk, directory: str) -> None:
    """Blocks until the removal is durable: a crash after the first write must not bring the mark back."""
    _remove_durably(disk, directory, CLEAN_SHUTDOWN_MARK)


def _remove_durably(disk: Disk, directory: str, name: str) -> None:
    path = join(directory, name)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def last_broker_epoch(disk: Disk, directory: str) -> int:
    """The epoch of the last process that ran on this directory, however it ended; -1 if it is not known."""
    return _read_epoch(disk, join(directory, BROKER_EPOCH))


def write_broker_epoch(disk: Disk, directory: str, broker_epoch: int) -> None:
    """Note the epoch in which a process begins to run on this directory. Blocks until it is durable."""
    _write_epoch(disk, join(directory, BROKER_EPOCH), broker_epoch)


def remove_broker_epoch(disk: Disk, directory: str) -> None:
    """Called before a registration whose answer may never come. Blocks until the removal is durable."""
    _remove_durably(disk, directory, BROKER_EPOCH)


def format_id(identifier: bytes) -> str:
    """16 bytes as Kafka writes them: base64url without padding."""
    if len(identifier) != _ID_BYTES:
        raise ValueError(f"an id has {_ID_BYTES} bytes, not {len(identifier)}")
    return urlsafe_b64encode(identifier).rstrip(b"=").decode()


def parse_id(path: str, line: int, what: str, text: str) -> bytes:
    try:
        identifier = urlsafe_b64decode(text + "==")
    except (Base64Error, ValueError):
        identifier = b""
    # The decoder skips characters that are not base64, so only encoding it again shows that the text was exactly an id.
    if len(identifier) != _ID_BYTES or format_id(identifier) != text:
        raise CorruptCheckpoint(f"{path}: line {line}: {what} {text!r} is not {_ID_BYTES} bytes of base64url without padding")
    return identifier


def _parse_metadata_line(path: str, number: int, key: str, line: str) -> str:
    found, colon, value = line.partition(":")
    if not colon or found != key:
        raise CorruptCheckpoint(f"{path}: line {number}: {line!r} is not of the form '{key}: ...'")
    return value.strip()


def _property(path: str, values: dict[str, tuple[int, str]], key: str) -> tuple[int, str]:
    if key not in values:
        raise CorruptCheckpoint(f"{path}: line 1: {key} is missing from the file")
    return values[key]


def _parse_property(path: str, number: int, line: str) -> tuple[str, str]:
    """Key and value in a subset of Java's format: one line, and no escapes but those of single characters."""
    separators = [position for position in (line.find("="), line.find(":")) if position > 0]
    if not separators:
        raise CorruptCheckpoint(f"{path}: line {number}: {line!r} is not of the form 'key=value'")
    at = min(separators)
    # As in Java, trailing spaces belong to the value.
    value = line[at + 1 :].lstrip()
    unescaped: list[str] = []
    characters = iter(value)
    for character in characters:
        unescaped.append(next(characters, "") if character == "\\" else character)
    return line[:at].strip(), "".join(unescaped)


def _escape_property(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"{value!r} cannot be written to a properties file: only printable ASCII characters can")
    return "".join(f"\\{character}" if character in _ESCAPED_IN_PROPERTIES else character for character in value)


def _read_lines(disk: Disk, path: str) -> list[str]:
    """Return the lines without line ends; an empty list if the file does not exist."""
    try:
        data = read_whole(disk, path)
    except OSError as error:
        raise CorruptCheckpoint(f"{path}: line 1: the file cannot be read: {error}") from error
    if not data:
        return []
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CorruptCheckpoint(f"{path}: line {line}: byte {data[error.start]:#04x} is not UTF-8") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


OnWritten = Callable[[BaseException | None], None]


class CheckpointPorts(NamedTuple):
    disk: Disk
    executor: Executor
    report: Report
    reserve: DiskReserve


class CheckpointWriter:
    __slots__ = ("_disk", "_executor", "_in_flight", "_path", "_report", "_reserve", "_take", "_waiting", "_wanted", "written")

    def __init__(
        self,
        ports: "CheckpointPorts",
        path: str,
        take: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        """``take`` returns the offsets to write, as they are at the time of the call."""
        disk, executor, report, reserve = ports
        self._disk = disk
        self._reserve = reserve
        self._executor = executor
        self._report = report
        self._path = path
        self._take = take
        self._in_flight = False
        self._wanted = False
        self._waiting: list[OnWritten] = []
        # The offsets that the file on the disk is known to hold.
        self.written: Mapping[TopicPartition, int] = {}

    @property
    def is_idle(self) -> bool:
        return not self._in_flight and not self._wanted

    def request(self, on_written: OnWritten | None = None) -> None:
        self._wanted = True
        if on_written is not None:
            self._waiting.append(on_written)
        if not self._in_flight:
            self._start()

    def write_now(self) -> None:
        """Write the offsets when starting or stopping. Blocks until they are durable."""
        offsets = dict(self._take())
        self._write(offsets)
        self.written = offsets

    def _write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Without checkpoints no segment may be removed, so they may use the reserve."""
        self._reserve.use(lambda: write_offset_checkpoint(self._disk, self._path, offsets))

    def _start(self) -> None:
        offsets = dict(self._take())
        waiting, self._waiting = self._waiting, []
        self._wanted = False
        self._in_flight = True
        self._executor.submit(lambda: self._write(offsets), lambda completion: self._finish(offsets, waiting, completion))

    def _finish(self, offsets: Mapping[TopicPartition, int], waiting: list[OnWritten], completion: Completion) -> None:
        self._in_flight = False
        if completion.error is None:
            self.written = offsets
        else:
            self._report("checkpoint_not_written", {"path": self._path, "error": str(completion.error)})
        for on_written in waiting:
            on_written(completion.error)
        if self._wanted and not self._in_flight:
            self._start()
