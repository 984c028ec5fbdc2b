"""Whether a table can have missed a delete: compaction removes a tombstone some time after it has removed what it deletes.

A table that was away for longer than tombstones are kept still has rows that the topic has not, and nothing in the topic says so.
Beside its positions it therefore keeps when it was last at the topic's end (``caught-up``, in milliseconds). A run that begins
too long after that is refused; half of the time that tombstones are kept is left to the run for reading.
"""

from collections.abc import Mapping

from tidelog.spark.pipelines.topic_facts import TopicFacts
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.positions import position_name

CAUGHT_UP = "caught-up"
# Kafka's default, where the setting may not be read.
_DELETE_RETENTION_MS = 86_400_000


class DeletesMissed(TableError):
    """Rows may have been deleted in the topic and not in the table."""


def check_deletes(table: LakeTable, facts: TopicFacts, now_ms: int) -> None:
    caught_up_ms = table.position(CAUGHT_UP)
    if not facts.is_compacted or not caught_up_ms or is_at_end(table, facts):
        return
    kept_ms = int(facts.settings.get("delete.retention.ms", _DELETE_RETENTION_MS))
    if now_ms - caught_up_ms > kept_ms // 2:
        raise DeletesMissed(
            f"the table {table.place} was last at the end of {facts.topic} {_hours(now_ms - caught_up_ms)} ago, and the topic "
            f"keeps deletes for {_hours(kept_ms)}: rows may have been deleted that the table has still. "
            "Remove it and run again, or go on with --skip-lost"
        )


def is_at_end(table: LakeTable, facts: TopicFacts) -> bool:
    return all(table.position(position_name(facts.topic, partition)) >= end for partition, end in facts.ends.items())


def first_time(table: LakeTable, facts: TopicFacts, now_ms: int) -> Mapping[str, int]:
    """What is to be noted before anything is read: rows that come first may be deleted before the last ones are read."""
    return {CAUGHT_UP: now_ms} if facts.is_compacted and not table.position(CAUGHT_UP) else {}


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / 3_600_000:.1f} h"
