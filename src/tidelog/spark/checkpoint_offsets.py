"""The offsets of a stream in Spark's checkpoint: one JSON object per micro-batch, written before the batch runs.

    {"tidelog": 1, "topics": {"orders": {"id": "Yx3…", "offsets": {"0": 23, "1": 7}}}, "begins": {"orders": {"1": 0}}}

``topics`` says where the batch ends: for each partition, the offset of the next message to read. The id tells a topic from a
later one of the same name, whose offsets mean something else.

``begins`` says where the partitions begin that this batch reads for the first time. Spark keeps the end of a batch but not where
the first one began. After a crash it asks for the initial offset again, and "latest" is somewhere else by then; so is the
earliest offset of a partition that was added. With ``begins`` in the end offset, a batch that runs again is the same batch.
``"initial": true`` marks an offset that belongs to no batch and therefore says nothing about where one began.

On disk, ``offsets/N`` has a line with the format's version, a line with Spark's own notes and a line for each source; ours is the
only one. ``commits/N`` exists once batch N is done. Both stay the same when the batch runs again.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tidelog.client.errors import TidelogError
from tidelog.client.topic_partition import TopicPartition

VERSION = 1
_VERSION_KEY = "tidelog"
_ID_BYTES = 16
_SHOWN_CHARACTERS_MAX = 500


class UnreadableOffsets(TidelogError):
    """The offsets in the checkpoint were not written by this source, or are damaged."""


class StreamOffset(NamedTuple):
    ids: Mapping[str, bytes]
    positions: Mapping[TopicPartition, int]
    begins: Mapping[TopicPartition, int] = {}
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Encode always in the same order, because Spark compares the texts."""
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
                "Use a new checkpointLocation, with startingOffsets that say where to continue"
            ) from error
        return cls(ids, positions, begins, written.get("initial") is True)


def begin_of_batch(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
    """Return where each partition of ``end`` begins in the batch from ``start`` to ``end``."""
    begins = {}
    for partition, position in end.positions.items():
        if partition in start.positions and not start.is_initial:
            begins[partition] = start.positions[partition]
        else:
            # An end that belongs to no batch has no begins, and nothing comes before it.
            begins[partition] = end.begins.get(partition, position)
    return begins


def id_text(topic_id: bytes) -> str:
    """The id in the form that Kafka's tools show."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def _id_of(text: str) -> bytes:
    topic_id = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != _ID_BYTES:
        raise ValueError(f"{text!r} is not a topic id")
    return topic_id


def _of_topic(offsets: Mapping[TopicPartition, int], topic: str) -> dict[str, int]:
    return {str(partition.partition): offset for partition, offset in sorted(offsets.items()) if partition.topic == topic}


def _flat(by_topic: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    found = {}
    for topic, by_partition in by_topic.items():
        for number, offset in by_partition.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ValueError(f"{topic}[{number}] has {offset!r}")
            found[TopicPartition(topic, int(number))] = offset
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "…"


# -- the files of a checkpoint ------------------------------------------------------------------------------------------------


class PlannedBatch(NamedTuple):
    planned_ms: int
    """When Spark looked for new data."""
    offset: StreamOffset
    """Where the batch ends."""


def planned_batch(checkpoint: Path, number: int) -> PlannedBatch:
    try:
        return parse((checkpoint / "offsets" / str(number)).read_text())
    except (OSError, ValueError, KeyError, TidelogError) as error:
        raise UnreadableOffsets(f"the checkpoint {checkpoint} does not say where batch {number} ends: {error}") from error


def offsets_of_batch(checkpoint: Path, number: int) -> int:
    """The number of offsets in the batch, counted from the end of the batch before it."""
    end = planned_batch(checkpoint, number).offset
    start = planned_batch(checkpoint, number - 1).offset if number else StreamOffset({}, {}, is_initial=True)
    return sum(end.positions[partition] - begin for partition, begin in begin_of_batch(start, end).items())


def last_batch_done(checkpoint: Path) -> int | None:
    return _last(checkpoint / "commits")


def last_batch_planned(checkpoint: Path) -> int | None:
    return _last(checkpoint / "offsets")


def _last(directory: Path) -> int | None:
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)


def parse(text: str) -> PlannedBatch:
    _, notes, offset = text.strip().split("\n")
    return PlannedBatch(int(json.loads(notes)["batchTimestampMs"]), StreamOffset.from_json(json.loads(offset)))
