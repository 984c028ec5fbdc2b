"""Offsets go into the checkpoint and come back; what is not ours is told apart from what is damaged.

A checkpoint as Spark writes it.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.topic_partition import TopicPartition
from tidelog.spark.checkpoint_offsets import (
    StreamOffset,
    UnreadableOffsets,
    begin_of_batch,
    id_text,
    last_batch_done,
    offsets_of_batch,
    planned_batch,
)

ID = bytes(range(16))
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_the_format_is_what_checkpoints_have() -> None:
    offset = StreamOffset({"a": ID}, {A1: 7, A0: 23}, {A1: 5})
    assert json.dumps(offset.to_json()) == (
        '{"tidelog": 1, "topics": {"a": {"id": "AAECAwQFBgcICQoLDA0ODw", "offsets": {"0": 23, "1": 7}}}, '
        '"begins": {"a": {"1": 5}}}'
    )
    assert StreamOffset({}, {}, is_initial=True).to_json() == {"tidelog": 1, "topics": {}, "initial": True}


names = st.text(min_size=1, max_size=5)
positions = st.dictionaries(st.integers(0, 20), st.integers(0, 2**63 - 1), max_size=4)


@given(
    topics=st.dictionaries(names, st.tuples(st.binary(min_size=16, max_size=16), positions), max_size=3), is_initial=st.booleans()
)
def test_what_is_written_is_read_back(topics: dict[str, tuple[bytes, dict[int, int]]], is_initial: bool) -> None:
    flat = {TopicPartition(topic, number): offset for topic, (_, offsets) in topics.items() for number, offset in offsets.items()}
    begins = {partition: offset // 2 for partition, offset in flat.items() if partition.partition % 2}
    offset = StreamOffset({topic: topic_id for topic, (topic_id, _) in topics.items()}, flat, begins, is_initial)
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_id_is_shown_as_kafka_shows_it() -> None:
    assert id_text(b"\xfb" * 16) == "-_v7-_v7-_v7-_v7-_v7-w"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"orders": {"0": 23}}, "offsets of the stock connector can be given as startingOffsets as they are"),
        (None, "that this source did not write: None"),
        ({"tidelog": 2, "topics": {}}, "offsets of version 2, and this Tidelog reads 1"),
        ({"tidelog": 1}, "damaged"),
        ({"tidelog": 1, "topics": {"a": {"offsets": {}}}}, "damaged"),
        ({"tidelog": 1, "topics": {"a": {"id": "short", "offsets": {}}}}, "damaged"),
        ({"tidelog": 1, "topics": {"a": {"id": id_text(ID), "offsets": {"x": 1}}}}, "damaged"),
        ({"tidelog": 1, "topics": {"a": {"id": id_text(ID), "offsets": {"0": -1}}}}, "a[0] has -1"),
        ({"tidelog": 1, "topics": {"a": {"id": id_text(ID), "offsets": {"0": "7"}}}}, "a[0] has '7'"),
        ({"tidelog": 1, "topics": {"a": {"id": id_text(ID), "offsets": {}}}, "begins": [1]}, "damaged"),
    ],
)
def test_what_cannot_be_read_is_said(written: Any, message: str) -> None:
    with pytest.raises(UnreadableOffsets, match=re.escape(message)):
        StreamOffset.from_json(written)


def test_a_batch_begins_where_the_one_before_it_ended() -> None:
    start, end = StreamOffset({"a": ID}, {A0: 5}), StreamOffset({"a": ID}, {A0: 9, A1: 4}, {A1: 2})
    assert begin_of_batch(start, end) == {A0: 5, A1: 2}


def test_the_first_batch_run_again_begins_where_it_began_whatever_latest_is_now() -> None:
    now = StreamOffset({"a": ID}, {A0: 500}, is_initial=True)
    end = StreamOffset({"a": ID}, {A0: 9}, {A0: 3})
    assert begin_of_batch(now, end) == {A0: 3}


def test_what_a_finished_batch_began_with_is_not_begun_again() -> None:
    """An end with begins stays the start of the following triggers as long as nothing new comes."""
    finished = StreamOffset({"a": ID}, {A0: 9}, {A0: 3})
    assert begin_of_batch(finished, finished) == {A0: 9}
    assert begin_of_batch(finished, StreamOffset({"a": ID}, {A0: 12})) == {A0: 9}


# -- files --------------------------------------------------------------------------------------------------------------------


WRITTEN = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1794820969489,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"tidelog": 1, "topics": {"orders": {"id": "vfHhHglJpXuYvX42IsJ8rA", "offsets": {"0": 150, "1": 7}}}}"""


def test_what_is_planned_and_what_is_done(tmp_path: Path) -> None:
    assert last_batch_done(tmp_path) is None
    for directory, names in (("offsets", ["9", "10"]), ("commits", ["8", "9", ".10.crc"])):
        (tmp_path / directory).mkdir()
        for name in names:
            (tmp_path / directory / name).write_text(WRITTEN)
    assert last_batch_done(tmp_path) == 9
    planned = planned_batch(tmp_path, 10)
    assert planned.planned_ms == 1_794_820_969_489
    assert isinstance(planned.offset, StreamOffset)
    assert planned.offset.positions == {TopicPartition("orders", 0): 150, TopicPartition("orders", 1): 7}


def test_how_many_offsets_a_batch_has(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    begins = WRITTEN.replace('{"tidelog": 1, ', '{"tidelog": 1, "begins": {"orders": {"0": 120, "1": 5}}, ')
    (tmp_path / "offsets" / "0").write_text(begins)
    (tmp_path / "offsets" / "1").write_text(WRITTEN.replace('"0": 150', '"0": 190'))
    assert [offsets_of_batch(tmp_path, number) for number in (0, 1)] == [32, 40]


@pytest.mark.parametrize("text", ["", "v1", WRITTEN.replace("batchTimestampMs", "other"), WRITTEN.replace("tidelog", "kafka")])
def test_what_nobody_can_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "offsets").mkdir()
    with pytest.raises(UnreadableOffsets, match="does not say where batch 3 ends"):
        planned_batch(tmp_path, 3)
    (tmp_path / "offsets" / "3").write_text(text)
    with pytest.raises(UnreadableOffsets, match="does not say where batch 3 ends"):
        planned_batch(tmp_path, 3)
