"""``Message``: an immutable view of librdkafka's message, as consumers get it; and ``Messages``, the result of a poll.

It is a tuple of key, value and confluent-kafka's message, because C code makes and reads a tuple fastest: a Python object with
its own ``__init__`` costs more than all the rest of a poll. Key and value, which nearly every caller reads, are fetched when the
view is made; every other field is read on access and not kept.

Two messages are equal if they are the same message: topic, partition and offset. The length and the items of the tuple are not
part of the interface.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, overload

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka.cimpl import Message as KafkaMessage

from tidelog.client.errors import SerializationError
from tidelog.client.topic_partition import TopicPartition

# How much of a value that cannot be decoded an error message quotes.
_EXCERPT_BYTES = 60

_TIMESTAMP_TYPES = {TIMESTAMP_CREATE_TIME: "create", TIMESTAMP_LOG_APPEND_TIME: "log-append"}
_TIMESTAMP_CODES = {name: code for code, name in _TIMESTAMP_TYPES.items()}

_key_of = KafkaMessage.key
_value_of = KafkaMessage.value
_offset_of = KafkaMessage.offset


# How often a worker has tried a message before; ``deadletters.letter`` has the whole story.
ATTEMPTS_HEADER = "tidelog.attempts"


class _Fields(NamedTuple):
    """Provides ``Message`` with accessors that are written in C. Its constructor is not, so it is not a base class."""

    key: bytes | None
    value: bytes | None
    raw: Any


class Message(tuple[bytes | None, bytes | None, Any]):
    """One message. ``Message.of(...)`` makes one without a broker, for testing a handler.

    It is immutable, and valid for as long as it is kept; each message that is kept holds its own bytes in memory.
    """

    __slots__ = ()

    key = _Fields.key
    """The key's bytes, or None."""
    value = _Fields.value
    """The value's bytes, or None: a tombstone."""
    raw = _Fields.raw
    """confluent-kafka's own message, for fields that are missing here."""

    @classmethod
    def of(
        cls,
        value: bytes | str | None = None,
        *,
        topic: str = "topic",
        partition: int = 0,
        offset: int = 0,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
        timestamp_type: str = "create",
        leader_epoch: int | None = None,
    ) -> Self:
        """A message from its fields, with text encoded as UTF-8: what a handler gets, without a broker."""
        key_bytes = key.encode() if isinstance(key, str) else key
        value_bytes = value.encode() if isinstance(value, str) else value
        fields: dict[str, Any] = {"topic": topic, "partition": partition, "offset": offset}
        fields["headers"] = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        if key_bytes is not None:
            fields["key"] = key_bytes
        if value_bytes is not None:
            fields["value"] = value_bytes
        if timestamp is not None:
            fields["timestamp"] = (_TIMESTAMP_CODES[timestamp_type], timestamp)
        if leader_epoch is not None:
            fields["leader_epoch"] = leader_epoch
        return cls((key_bytes, value_bytes, KafkaMessage(**fields)))

    @property
    def topic(self) -> str:
        topic: str = self[2].topic()
        return topic

    @property
    def partition(self) -> int:
        partition: int = self[2].partition()
        return partition

    @property
    def offset(self) -> int:
        offset: int = self[2].offset()
        return offset

    @property
    def headers_list(self) -> list[tuple[str, bytes | None]]:
        """All headers in order; a name may occur more than once."""
        return self[2].headers() or []

    @property
    def headers(self) -> dict[str, bytes | None]:
        """Headers by name; of several with one name the last one counts, as in Kafka's ``lastHeader``."""
        return dict(self[2].headers() or ())

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970 (UTC); None if the topic keeps no timestamps."""
        kind, milliseconds = self[2].timestamp()
        return milliseconds if kind in _TIMESTAMP_TYPES else None

    @property
    def timestamp_type(self) -> str | None:
        """``"create"``: the producer's clock; ``"log-append"``: the broker's; None without a timestamp."""
        return _TIMESTAMP_TYPES.get(self[2].timestamp()[0])

    @property
    def leader_epoch(self) -> int | None:
        """The epoch of the leader that took the message; None if the broker does not say."""
        leader_epoch: int | None = self[2].leader_epoch()
        return leader_epoch

    @property
    def attempt(self) -> int:
        """Which attempt of a worker's handler this is: 1 at first, one more after each that failed."""
        tried = self.headers.get(ATTEMPTS_HEADER)
        return 1 + (int(tried) if tried is not None and tried.isdigit() else 0)

    def text(self) -> str | None:
        """The value decoded as UTF-8; None for a tombstone. SerializationError if it is not UTF-8."""
        if self[1] is None:
            return None
        try:
            return self[1].decode()
        except UnicodeDecodeError as error:
            raise SerializationError(f"{self._position()}: the value is not UTF-8: {self[1][:_EXCERPT_BYTES]!r}") from error

    def json(self) -> Any:
        """The value decoded as JSON; None for a tombstone. SerializationError if it is not JSON."""
        if self[1] is None:
            return None
        try:
            return json.loads(self[1])
        except ValueError as error:
            raise SerializationError(f"{self._position()}: the value is not JSON: {self[1][:_EXCERPT_BYTES]!r}") from error

    def _position(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.partition, self.offset) == (other.topic, other.partition, other.offset)

    def __ne__(self, other: object) -> bool:
        """Overridden because tuples would compare items."""
        return not self == other

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        value_bytes = "None" if self[1] is None else f"{len(self[1])} bytes"
        return f"<Message {self._position()} key={self[0]!r} value={value_bytes}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Messages can be pickled for another process; confluent-kafka's cannot."""
        fields = {
            "key": self.key,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "headers": self.headers_list,
            "timestamp": self.timestamp,
            "timestamp_type": self.timestamp_type or "create",
            "leader_epoch": self.leader_epoch,
        }
        return _rebuilt, (self.value, fields)


def _rebuilt(value: bytes | None, fields: dict[str, Any]) -> Message:
    return Message.of(value, **fields)


class MessageRun(NamedTuple):
    """Consecutive messages of one partition."""

    partition: TopicPartition
    messages: list[Message]
    offsets: list[int]
    value_bytes: int
    """The size of all values together."""


class Messages(Sequence[Message]):
    """The result of a poll: a sequence of messages that are made on access.

    Most are read once, in order, and forgotten; making all of them in advance would cost twice as much. ``list(messages)`` makes
    messages to keep.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: list[Any]) -> None:
        """``raw`` are confluent-kafka's messages; the list must not change."""
        self._raw = raw

    def __iter__(self) -> Iterator[Message]:
        # All of this runs in C.
        raw = self._raw
        return map(Message, zip(map(_key_of, raw), map(_value_of, raw), raw, strict=True))

    def __len__(self) -> int:
        return len(self._raw)

    def runs(self) -> list["MessageRun"]:
        """The messages in their order, as runs of one partition each."""
        raw, found = self._raw, []
        begin, count = 0, len(raw)
        while begin < count:
            topic, partition = raw[begin].topic(), raw[begin].partition()
            end = begin + 1
            while end < count and raw[end].partition() == partition and raw[end].topic() == topic:
                end += 1
            part = raw[begin:end]
            offsets: list[Any] = list(map(_offset_of, part))
            # The length of confluent-kafka's message is that of its value.
            found.append(MessageRun(TopicPartition(topic, partition), list(Messages(part)), offsets, sum(map(len, part))))
            begin = end
        return found

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> "Messages": ...

    def __getitem__(self, index: int | slice) -> "Message | Messages":
        if isinstance(index, slice):
            return Messages(self._raw[index])
        raw = self._raw[index]
        return Message((raw.key(), raw.value(), raw))

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same messages."""
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"<{len(self)} messages>"
