"""Offsets of a stream as they stand in Spark's checkpoint: one JSON object per micro-batch, written before the batch runs.

    {"tidelog": 1, "topics": {"orders": {"id": "Yx3…", "offsets": {"0": 23, "1": 7}}}, "begins": {"orders": {"1": 0}}}

``topics`` has where the batch ends: by partition, the offset of the next message to read. The id tells a topic from another one
of the same name, whose offsets mean something else.

``begins`` has where the partitions begin that are read for the first time in this batch. Spark keeps the end of a batch but not
where the first one began: after a crash it asks for the initial offset anew, and "latest" is somewhere else by then; the same
goes for the earliest offset of a partition that was added. With it in the end, a batch that is run again is the same batch.
``"initial": true`` marks an offset that is of no batch, and so is nobody's word for where one began.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from tidelog.client.errors import TidelogError
from tidelog.client.topic_partition import Partition

VERSION = 1
_VERSION_KEY = "tidelog"
_ID_BYTES = 16
_SHOWN_CHARACTERS_MAX = 500


class UnreadableOffsets(TidelogError):
    """What the checkpoint has as offsets is not what this source wrote."""


class StreamOffset(NamedTuple):
    ids: Mapping[str, bytes]
    positions: Mapping[Partition, int]
    begins: Mapping[Partition, int] = {}
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares the texts."""
        topics = {
            topic: {"id": id_text(topic_id), "offsets": _of_topic(self.positions, topic)}
            for topic, topic_id in sorted(self.ids.items())
        }
        written: dict[str, Any] = {_VERSION_KEY: VERSION, "topics": topics}
        if self.begins:
            begin_topics = sorted({partition.topic for partition in self.begins})
            written["begins"] = {topic: _of_topic(self.begins, topic) for topic in begin_topics}
        if self.is_initial:
            written["initial"] = True
        return written

    @classmethod
    def from_json(cls, written: object) -> Self:
        if not isinstance(written, dict) or _VERSION_KEY not in written:
            raise UnreadableOffsets(
                f"the checkpoint has offsets that this source did not write: {_shown(written)}. Use a new checkpointLocation; "
                "offsets of the stock connector can be given as startingOffsets as they are"
            )
        if written[_VERSION_KEY] != VERSION:
            raise UnreadableOffsets(
                f"the checkpoint has offsets of version {_shown(written[_VERSION_KEY])}, and this Tidelog reads {VERSION}: "
                "use the version that wrote it, or a newer one"
            )
        try:
            ids = {topic: _id_of(each["id"]) for topic, each in written["topics"].items()}
            positions = _flat({topic: each["offsets"] for topic, each in written["topics"].items()})
            begins = _flat(written.get("begins", {}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableOffsets(
                f"the checkpoint has offsets that are damaged: {_shown(written)} ({type(error).__name__}: {error}). "
                "Use a new checkpointLocation, with startingOffsets that say where to go on"
            ) from error
        return cls(ids, positions, begins, written.get("initial") is True)


def begin_of_batch(start: StreamOffset, end: StreamOffset) -> dict[Partition, int]:
    """Where each partition of ``end`` begins in the batch from ``start`` to ``end``."""
    begins = {}
    for partition, position in end.positions.items():
        if partition in start.positions and not start.is_initial:
            begins[partition] = start.positions[partition]
        else:
            # An end that is of no batch has no begins, and nothing comes before it.
            begins[partition] = end.begins.get(partition, position)
    return begins


def id_text(topic_id: bytes) -> str:
    """As Kafka's tools write it."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _id_of(text: str) -> bytes:
    topic_id = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != _ID_BYTES:
        raise ValueError(f"{text!r} is no topic id")
    return topic_id


def _of_topic(offsets: Mapping[Partition, int], topic: str) -> dict[str, int]:
    return {str(partition.partition): offset for partition, offset in sorted(offsets.items()) if partition.topic == topic}


def _flat(by_topic: Mapping[str, Mapping[str, Any]]) -> dict[Partition, int]:
    found = {}
    for topic, by_partition in by_topic.items():
        for number, offset in by_partition.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ValueError(f"{topic}[{number}] has {offset!r}")
            found[Partition(topic, int(number))] = offset
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"
