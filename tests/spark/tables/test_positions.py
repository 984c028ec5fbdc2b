"""Which rows of a task the table lacks."""

import pyarrow as pa
import pytest

from tidelog.spark.tables.errors import WrongSchema
from tidelog.spark.tables.positions import Positions

Place = tuple[str | None, int, int]


def batch(*places: Place) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*places, strict=True) if places else ((), (), ())
    columns = [pa.array(topics, pa.string()), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    return pa.record_batch(columns, names=["topic", "partition", "offset"])


def taken(positions: Positions, *places: Place) -> list[Place]:
    found = [row for part in positions.missing(batch(*places)) for row in part.to_pylist()]
    return [(row["topic"], row["partition"], row["offset"]) for row in found]


def test_what_is_before_the_position_is_left_out() -> None:
    asked: list[str] = []

    def ask(name: str) -> int:
        asked.append(name)
        return {"a/0": 5}.get(name, 0)

    positions = Positions(ask)
    assert taken(positions, ("a", 0, 3), ("a", 0, 4)) == []
    assert (positions.seen, positions.next) == ({"a/0": 5}, {}), "a batch that is there already moves nothing"
    assert taken(positions, ("a", 0, 4), ("a", 0, 5), ("a", 0, 9)) == [("a", 0, 5), ("a", 0, 9)]
    assert taken(positions, ("a", 0, 7)) == [("a", 0, 7)]
    assert taken(positions) == []
    assert positions.next == {"a/0": 10}
    assert asked == ["a/0"]


def test_rows_of_several_partitions() -> None:
    positions = Positions(lambda name: {"a/0": 2, "b/0": 1}.get(name, 0))
    rows: list[Place] = [("a", 0, 1), ("a", 1, 0), ("b", 0, 0), ("a", 0, 2), ("b", 0, 1)]
    assert sorted(taken(positions, *rows)) == [("a", 0, 2), ("a", 1, 0), ("b", 0, 1)]
    assert positions.next == {"a/0": 3, "a/1": 1, "b/0": 2}


def test_a_row_without_a_place_is_refused() -> None:
    with pytest.raises(WrongSchema, match="column topic is null"):
        taken(Positions(lambda _: 0), ("a", 0, 1), (None, 0, 2))
