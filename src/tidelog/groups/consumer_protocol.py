"""The protocol that classic consumers embed in the metadata of JoinGroup and the assignment of SyncGroup.

    subscription: version int16 | topics [string] | user data bytes | 1: owned [topic string, partitions [int32]] | 2: generation
                  int32 | 3: rack string
    assignment:   version int16 | assigned [topic string, partitions [int32]] | user data bytes

Lengths are int32 for arrays and bytes, int16 for strings; -1 is null. Later versions only append fields, so the rest is ignored.
The bytes come from clients: whatever they are, the result is a value or ``MalformedProtocol``. Other protocol types (Connect,
Streams) embed formats of their own, which the coordinator does not understand.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidelog.metadata.image import ClusterImage

PROTOCOL_TYPE = "consumer"
VERSION_MAX = 3
OWNED_SINCE, GENERATION_SINCE, RACK_SINCE = 1, 2, 3

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class MalformedProtocol(Exception):
    pass


class ConsumerProtocolSubscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack_id: str | None


class ConsumerProtocolAssignment(NamedTuple):
    partitions: Mapping[str, tuple[int, ...]]
    user_data: bytes


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    reader = _Reader(data)
    version = reader.int16()
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    topics = tuple([reader.string() or "" for _ in range(reader.count(_INT16.size))])
    reader.bytes()
    owned = reader.partitions() if version >= OWNED_SINCE else {}
    if version >= GENERATION_SINCE:
        reader.int32()
    return ConsumerProtocolSubscription(version, topics, owned, reader.string() if version >= RACK_SINCE else None)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Empty bytes mean that nothing is assigned yet."""
    if not data:
        return ConsumerProtocolAssignment({}, b"")
    reader = _Reader(data)
    if reader.int16() < 0:
        raise MalformedProtocol("negative version")
    return ConsumerProtocolAssignment(reader.partitions(), reader.bytes())


def encode_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    parts = [_INT16.pack(max(0, min(version, VERSION_MAX))), _INT32.pack(len(partitions))]
    for topic in sorted(partitions):
        name = topic.encode()
        parts += (
            _INT16.pack(len(name)),
            name,
            struct.pack(f">i{len(partitions[topic])}i", len(partitions[topic]), *partitions[topic]),
        )
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


class _Reader:
    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise MalformedProtocol(f"{length} bytes at {self._position} of {len(self._data)}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def int16(self) -> int:
        value: int = _INT16.unpack(self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self._take(4))[0]
        return value

    def count(self, bytes_each: int) -> int:
        """Read the length of an array whose elements take at least ``bytes_each``. A count that cannot fit into the data is
        refused."""
        count = self.int32()
        if count * bytes_each > len(self._data) - self._position:
            raise MalformedProtocol(f"{count} elements at {self._position} of {len(self._data)}")
        return max(0, count)

    def bytes(self) -> bytes:
        length = self.int32()
        return b"" if length < 0 else self._take(length)

    def string(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedProtocol(str(error)) from None

    def partitions(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(self.count(_INT16.size + _INT32.size)):
            topic = self.string() or ""
            indexes = [self.int32() for _ in range(self.count(_INT32.size))]
            found[topic] = tuple(sorted({*found.get(topic, ()), *indexes}))
        return found


_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the topics of a subscription and ignore what follows; None when the bytes are not a subscription."""
    try:
        _, count = _HEAD.unpack_from(metadata)
        position = _HEAD.size
        # Each topic takes at least two bytes.
        if not 0 <= count <= len(metadata) // _LENGTH.size:
            return None
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            topics.append(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


def by_topic_id(partitions: Mapping[str, Sequence[int]], image: ClusterImage) -> dict[bytes, tuple[int, ...]]:
    """Translate names, which the classic protocol uses, into ids, which KIP-848 uses. Partitions that do not exist are
    dropped."""
    found = {}
    for name in sorted(partitions):
        topic = image.topic(name)
        indexes = () if topic is None else tuple(index for index in partitions[name] if index in topic.partitions)
        if topic is not None and indexes:
            found[topic.topic_id] = indexes
    return found


def by_topic_name(partitions: Mapping[bytes, Sequence[int]], image: ClusterImage) -> dict[str, Sequence[int]]:
    topics = [(image.topic_by_id(topic_id), indexes) for topic_id, indexes in partitions.items()]
    return {topic.name: indexes for topic, indexes in topics if topic is not None}
