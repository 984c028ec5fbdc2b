"""Where the batches of a query end, as Spark's checkpoint has it: written down before a batch runs, the same when it runs again.

``offsets/N`` has a line with the format's version, a line with Spark's own notes, and a line for each source, of which ours is
the only one. ``commits/N`` is there when batch N is done.
"""

import json
from pathlib import Path
from typing import NamedTuple

from tidelog.client.errors import TidelogError
from tidelog.spark.offsets import StreamOffset, UnreadableOffsets, begin_of_batch


class PlannedBatch(NamedTuple):
    planned_ms: int
    """When Spark looked for news."""
    offset: StreamOffset
    """Where it ends."""


def planned_batch(checkpoint: Path, number: int) -> PlannedBatch:
    try:
        return parse((checkpoint / "offsets" / str(number)).read_text())
    except (OSError, ValueError, KeyError, TidelogError) as error:
        raise UnreadableOffsets(f"the checkpoint {checkpoint} does not say where batch {number} ends: {error}") from error


def offsets_of_batch(checkpoint: Path, number: int) -> int:
    """How many it has, from the end of the batch before it."""
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
