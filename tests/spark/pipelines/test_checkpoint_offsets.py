"""A checkpoint as Spark writes it."""

from pathlib import Path

import pytest

from tidelog.client.topic_partition import Partition
from tidelog.spark.offsets import StreamOffset, UnreadableOffsets
from tidelog.spark.pipelines.checkpoint_offsets import last_batch_done, offsets_of_batch, planned_batch

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
    assert planned.offset.positions == {Partition("orders", 0): 150, Partition("orders", 1): 7}


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
