"""What a run of archive brought, from the tables' own history: whatever it committed is counted, and nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from tidelog.spark.pipelines.cluster_options import Topic
from tidelog.spark.pipelines.pipeline import Outcome
from tidelog.spark.tables.lake_table import PREFIX, LakeTable
from tidelog.spark.tables.positions import position_name
from tidelog.spark.tables.table_sink import RUN


class Added(NamedTuple):
    """To one table, by one run."""

    topic: str
    rows: int
    bad_rows: int
    files: int
    """That the table has now, of this run and of earlier ones."""
    size_bytes: int
    version: int
    positions: dict[int, int]


def added_by(run: int, place: Path, version: int, topic: Topic) -> Added:
    """Since that version. Another run may have committed as well, while this one had nothing to do."""
    table = LakeTable.open(place)
    commits = table.delta.history(table.version - version) if table.version > version else []
    commits = [commit for commit in commits if int(commit.get(f"{PREFIX}{RUN}", 0)) == run]
    sizes = pa.table(table.delta.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return Added(
        topic.name,
        sum(int(commit.get(f"{PREFIX}rows", 0)) for commit in commits),
        sum(int(commit.get(f"{PREFIX}badRows", 0)) for commit in commits),
        len(sizes),
        sum(sizes),
        table.version,
        {number: table.position(position_name(topic.name, number)) for number in range(topic.partitions)},
    )


def outcome_of(added: Sequence[Added], *, is_stopped: bool) -> Outcome:
    rows, bad_rows = sum(each.rows for each in added), sum(each.bad_rows for each in added)
    bad = f", {bad_rows:,} of them bad and kept aside" if bad_rows else ""
    names = ", ".join(each.topic for each in added)
    stopped = "; stopped, the same command goes on from here" if is_stopped else ""
    figures: dict[str, int | float | str] = {"rows": rows, "bad_rows": bad_rows}
    figures["files"] = sum(each.files for each in added)
    figures["bytes"] = sum(each.size_bytes for each in added)
    for each in added:
        prefix = f"{each.topic} " if len(added) > 1 else ""
        figures[f"{prefix}version"] = each.version
        figures[f"{prefix}positions"] = ", ".join(f"{number}: {position}" for number, position in each.positions.items())
    return Outcome(f"{rows:,} messages of {names} archived{bad}{stopped}", figures)
