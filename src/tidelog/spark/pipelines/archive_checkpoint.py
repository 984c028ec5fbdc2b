"""Whether a checkpoint may say where an archive goes on: not where it is ahead of the table.

A query goes on where its checkpoint says. When the table was removed, restored from an older copy, or is another one, what lies
between the two would be in neither. Then the checkpoint is moved aside, and the table's own positions say where to begin.

A topic that ends with markers of transactions has a checkpoint ahead of the table too, for they are offsets without a message.
Reading them again is right but leaves a directory each time: so a run that ends well notes where both of them stand.
"""

import json
from pathlib import Path
from typing import Any

from tidelog.spark.pipelines.checkpoint_offsets import last_batch_done, last_batch_planned, planned_batch
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.positions import position_name

NOTE = "tidelog-table.json"


def set_aside_if_ahead(table: LakeTable, checkpoint: Path, topic: str) -> Path | None:
    """Where it is now, if it was."""
    begins = next_offsets(checkpoint, topic)
    if all(offset <= table.position(name) for name, offset in begins.items()) or _noted(checkpoint) == _standing(table, begins):
        return None
    number = 1
    while (aside := checkpoint.with_name(f"{checkpoint.name}.ahead-{number}")).exists():
        number += 1
    return checkpoint.rename(aside)


def note_end(table: LakeTable, checkpoint: Path, topic: str) -> None:
    """Of a run that ended well: what the checkpoint is ahead of the table, if it is, has no messages."""
    if begins := next_offsets(checkpoint, topic):
        (checkpoint / NOTE).write_text(json.dumps(_standing(table, begins)))


def next_offsets(checkpoint: Path, topic: str) -> dict[str, int]:
    """Where a query goes on, by the names of positions: at the end of the last batch, or of the one before if that has to be
    done again."""
    planned = last_batch_planned(checkpoint)
    if planned is None:
        return {}
    if last_batch_done(checkpoint) == planned:
        found = dict(planned_batch(checkpoint, planned).offset.positions)
    else:
        before = planned_batch(checkpoint, planned - 1).offset.positions if planned else {}
        found = {**before, **planned_batch(checkpoint, planned).offset.begins}
    # Of another topic, the source says so itself.
    return {position_name(*partition): offset for partition, offset in found.items() if partition.topic == topic}


def _standing(table: LakeTable, begins: dict[str, int]) -> dict[str, Any]:
    positions = {name: table.position(name) for name in begins}
    return {"table": str(table.delta.metadata().id), "positions": positions, "next": begins}


def _noted(checkpoint: Path) -> object:
    try:
        return json.loads((checkpoint / NOTE).read_text())
    except (OSError, ValueError):
        return None
