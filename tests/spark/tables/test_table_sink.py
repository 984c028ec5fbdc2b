"""Which rows of a task the table lacks.

The sink without Spark: what tasks and driver do, called as Spark calls them.
"""

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from tests.spark.tables.test_lake_table import BY, COLUMNS, IDENTITY, ensure, rows
from tidelog.client.errors import InvalidArgument
from tidelog.spark.tables.errors import TableConflict, TableMissing, WrongSchema
from tidelog.spark.tables.lake_table import LakeTable
from tidelog.spark.tables.table_sink import (
    MESSAGE_COLUMN,
    TableMessage,
    TableShape,
    TaskPositions,
    TidelogTableSink,
    combined_message,
    commit_tasks,
    write_task,
)

# -- positions ----------------------------------------------------------------------------------------------------------------


Place = tuple[str | None, int, int]


def batch(*places: Place) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*places, strict=True) if places else ((), (), ())
    columns = [pa.array(topics, pa.string()), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.record_batch(columns, names=["topic", "partition", "offset"])


def taken(positions: TaskPositions, *places: Place) -> list[Place]:
    found = positions.missing(batch(*places)).to_pylist()
    return [(row["topic"], row["partition"], row["offset"]) for row in found]


def test_what_is_before_the_position_is_left_out() -> None:
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        return {"a/0": 5}.get(name, 0)

    positions = TaskPositions(ask)
    assert taken(positions, ("a", 0, 3), ("a", 0, 4)) == []
    assert (positions.seen, positions.next) == ({"a/0": 5}, {}), "a batch that is there already moves nothing"
    assert taken(positions, ("a", 0, 4), ("a", 0, 5), ("a", 0, 9)) == [("a", 0, 5), ("a", 0, 9)]
    assert taken(positions, ("a", 0, 7)) == [("a", 0, 7)]
    assert taken(positions) == []
    assert positions.next == {"a/0": 10}
    assert asked == ["a/0"]


def test_rows_of_several_partitions() -> None:
    positions = TaskPositions(lambda name: {"a/0": 2, "b/0": 1}.get(name, 0))
    rows: list[Place] = [("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a", 0, 2), ("b", 0, 1)]
    assert sorted(taken(positions, *rows)) == [("a", 0, 2), ("a", 1, 0), ("b", 0, 1)]
    assert positions.next == {"a/0": 3, "a/1": 1, "b/0": 2}


def test_a_row_without_a_place_is_refused() -> None:
    with pytest.raises(WrongSchema, match="column topic is null"):
        taken(TaskPositions(lambda _: 0), ("a", 0, 1), (None, 0, 2))


# -- the sink -----------------------------------------------------------------------------------------------------------------


WITH_TOPIC = COLUMNS.append(pa.field("topic", pa.string()))


def messages(first: int, count: int) -> pa.RecordBatch:
    batch = rows(first, count)
    return pa.record_batch([*batch.columns, pa.array(["orders"] * count)], schema=WITH_TOPIC)


def table_at(place: Path) -> Path:
    LakeTable.ensure(place, WITH_TOPIC, partition_by=BY, identity=IDENTITY)
    return place


def shape_of(place: Path) -> TableShape:
    return TableShape.of(LakeTable.open(place))


def batch_of(place: Path, *tasks: tuple[int, int]) -> list[TableMessage | None]:
    return [write_task(place, shape_of(place), iter([messages(first, count)])) for first, count in tasks]


def stored(place: Path) -> list[int]:
    return sorted(LakeTable.open(place).delta.to_pyarrow_table(columns=["offset"]).column("offset").to_pylist())


def test_the_tasks_of_a_batch_are_one_commit(tmp_path: Path) -> None:
    place = table_at(tmp_path)
    # The second half of the partition comes first: a position is the furthest of all.
    told = [*batch_of(place, (50, 50), (0, 50)), None]
    assert stored(place) == [], "nobody sees it before the commit"
    commit_tasks(place, told)
    table = LakeTable.open(place)
    assert (table.version, table.position("orders/0")) == (1, 100)
    assert stored(place) == list(range(100))
    (commit,) = table.delta.history(1)
    assert (commit["tidelog.rows"], commit["tidelog.badRows"]) == (100, 10)


def test_a_batch_that_runs_again_changes_nothing(tmp_path: Path) -> None:
    place = table_at(tmp_path)
    commit_tasks(place, batch_of(place, (0, 50)))
    files = sorted(place.rglob("*.parquet"))
    commit_tasks(place, batch_of(place, (0, 50)))
    assert LakeTable.open(place).version == 1
    assert sorted(place.rglob("*.parquet")) == files
    commit_tasks(place, batch_of(place, (30, 40)))
    assert stored(place) == list(range(70))
    commit_tasks(place, batch_of(place, (0, 10)))
    assert LakeTable.open(place).position("orders/0") == 70


def test_of_two_runs_one_is_refused(tmp_path: Path) -> None:
    place = table_at(tmp_path)
    ours, theirs = batch_of(place, (0, 50)), batch_of(place, (0, 60))
    commit_tasks(place, theirs)
    with pytest.raises(TableConflict, match="orders/0 was at 0, and is at 60"):
        commit_tasks(place, ours)
    assert stored(place) == list(range(60))


def test_tasks_that_saw_the_table_at_different_times_are_refused(tmp_path: Path) -> None:
    """Another run commits in between. Whichever of them asked last, the rows of the other would be there twice."""
    place = table_at(tmp_path)
    early = batch_of(place, (0, 100))
    commit_tasks(place, batch_of(place, (0, 100)))
    late = batch_of(place, (100, 50))
    for told in ([*early, *late], [*late, *early]):
        with pytest.raises(TableConflict, match="orders/0 went from 0 to 100 while tasks of the batch ran"):
            commit_tasks(place, told)
        together = combined_message([message for message in told if message])
        with pytest.raises(TableConflict, match="orders/0 was at 0, and is at 100"):
            commit_tasks(place, [together])
    assert stored(place) == list(range(100))


def test_a_commit_that_fails_leaves_nothing_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = table_at(tmp_path)
    told = batch_of(place, (0, 50))

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(LakeTable, "append", fail)
    with pytest.raises(OSError, match="No space"):
        commit_tasks(place, told)
    monkeypatch.undo()
    assert stored(place) == []
    commit_tasks(place, batch_of(place, (0, 50)))
    assert stored(place) == list(range(50))


def test_files_that_other_tasks_wrote_are_committed_alike(tmp_path: Path) -> None:
    place = table_at(tmp_path)
    told = [message.encode() for message in batch_of(place, (0, 50), (50, 50)) if message]
    frame = pa.record_batch({MESSAGE_COLUMN: pa.array(told, pa.binary())})
    commit_tasks(place, [write_task(place, None, iter([frame])), combined_message([])])
    assert stored(place) == list(range(100))
    assert LakeTable.open(place).position("orders/0") == 100


def test_rows_beside_the_files_of_a_task_are_of_its_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that read them has seen that the table lacks them, and its message says how far the table comes with them. So
    nobody has to open the table, which takes long when it has many files."""
    place = table_at(tmp_path)
    positions = TaskPositions(lambda _: 0)
    written = write_task(place, shape_of(place), iter([messages(0, 10)]))
    positions.missing(messages(0, 20))
    told = TableMessage(written.files, positions.seen, positions.next)
    left = messages(10, 10)
    rows = pa.record_batch([*left.columns, pa.nulls(10, pa.binary())], names=[*left.schema.names, MESSAGE_COLUMN])
    last = pa.record_batch(
        [*[pa.nulls(1, kind) for kind in left.schema.types], pa.array([told.encode()])], names=rows.schema.names
    )
    shape = shape_of(place)
    with monkeypatch.context() as patched:
        patched.delattr(LakeTable, "open")
        message = write_task(place, shape, iter([rows, last]))
    commit_tasks(place, [message])
    assert stored(place) == list(range(20))
    assert LakeTable.open(place).position("orders/0") == 20
    with pytest.raises(TableConflict, match="orders/0 was at 0, and is at 20"):
        commit_tasks(place, [write_task(place, shape_of(place), iter([rows, last]))])


def test_times_in_the_zone_of_the_session_are_the_tables(tmp_path: Path) -> None:
    place = table_at(tmp_path)
    batch = messages(0, 1)
    index = batch.schema.get_field_index("timestamp")
    berlin = batch.column("timestamp").cast(pa.timestamp("us", "Europe/Berlin"))
    batch = batch.set_column(index, pa.field("timestamp", berlin.type), berlin)
    commit_tasks(place, [write_task(place, shape_of(place), iter([batch]))])
    (found,) = LakeTable.open(place).delta.to_pyarrow_table().column("timestamp").to_pylist()
    assert found == datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("options", "schema", "overwrite", "problem"),
    [
        ({}, "topic string", False, (InvalidArgument, "option path is missing")),
        ({"path": "{place}"}, "topic string", True, (InvalidArgument, "only grows")),
        ({"path": "{place}"}, "topic string, partition integer", False, (WrongSchema, "have no column offset")),
        ({"path": "{place}"}, "topic string, partition integer, offset long, x integer", False, (WrongSchema, "has no column x")),
        ({"path": "{place}/none"}, "topic string, partition integer, offset long", False, (TableMissing, "there is no table")),
    ],
)
def test_what_is_refused(
    tmp_path: Path, options: dict[str, str], schema: str, overwrite: bool, problem: tuple[type[Exception], str]
) -> None:
    place = table_at(tmp_path)
    given = {name: value.format(place=place) for name, value in options.items()}
    columns = StructType()
    for column in schema.split(", "):
        name, _, kind = column.partition(" ")
        columns = columns.add(name, kind)
    with pytest.raises(problem[0], match=problem[1]):
        TidelogTableSink(given).streamWriter(columns, overwrite)
    assert ensure(place, WITH_TOPIC).version == 0
