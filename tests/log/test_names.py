"""File and directory names, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.log import names
from tidelog.log.names import OffsetFile, PartitionDirectory

UNIQUE_ID = bytes(range(16))
HEX = UNIQUE_ID.hex()
topics = st.text("abzAZ019._-", min_size=1, max_size=249).filter(lambda name: name not in (".", ".."))
partitions = st.integers(0, names.PARTITION_MAX)
kinds = st.sampled_from([*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX])
states = st.sampled_from(["", names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.SWAP_SUFFIX])


@given(st.integers(0, 2**63 - 1), kinds, states)
def test_offset_file_names_round_trip(base_offset: int, kind: str, state: str) -> None:
    name = names.offset_file_name(base_offset, kind) + state
    assert names.parse_offset_file_name(name) == OffsetFile(base_offset, kind, state)
    assert names.strip_state(name) == names.offset_file_name(base_offset, kind)
    assert names.segment_path("/d", base_offset, kind) + state == names.join("/d", name)


def test_names_of_files_as_kafka_writes_them() -> None:
    assert names.offset_file_name(42, names.LOG_SUFFIX) == "00000000000000000042.log"
    assert names.snapshot_file_name(2**63 - 1) == "09223372036854775807.snapshot"
    assert names.segment_path("/data/orders-3", 7, names.TIME_INDEX_SUFFIX) == "/data/orders-3/00000000000000000007.timeindex"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".log",
        "42.log",
        "00000000000000000042",
        "00000000000000000042.logx",
        "0000000000000000004x.log",
        "000000000000000000042.log",
        "-0000000000000000042.log",
        "\u0660" * 20 + ".log",
        "99999999999999999999.log",
        "00000000000000000042.log.bak",
        "leader-epoch-checkpoint",
    ],
)
def test_other_files_are_not_taken_for_a_segments(name: str) -> None:
    assert names.parse_offset_file_name(name) is None


def test_base_offsets_are_those_in_use_in_order() -> None:
    listing = [
        names.offset_file_name(30, names.LOG_SUFFIX),
        names.offset_file_name(4, names.LOG_SUFFIX),
        names.offset_file_name(5, names.LOG_SUFFIX) + ".deleted",
        "00000000000000000001.index",
        "x",
    ]
    assert names.base_offsets_of(listing, names.LOG_SUFFIX) == [4, 30]


@given(topics, partitions)
def test_partition_directory_names_round_trip(topic: str, partition: int) -> None:
    name = names.partition_directory_name(topic, partition)
    assert names.parse_partition_directory_name(name) == PartitionDirectory(topic, partition, "", "")


@given(topics, partitions)
def test_doomed_directory_names_fit_and_are_told_apart(topic: str, partition: int) -> None:
    name = names.retired_directory_name(topic, partition, UNIQUE_ID, "delete")
    assert len(name) <= 255
    parsed = names.parse_partition_directory_name(name)
    assert parsed is not None
    assert topic.startswith(parsed.topic)
    assert (parsed.partition, parsed.unique_id, parsed.state) == (partition, HEX, "delete")


@pytest.mark.parametrize("state", ["delete", "future", "stray"])
def test_states_that_kafka_gives_a_directory(state: str) -> None:
    parsed = names.parse_partition_directory_name(f"my.topic-name-12.{HEX}-{state}")
    assert parsed == PartitionDirectory("my.topic-name", 12, HEX, state)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "orders-",
        "-3",
        "orders-03",
        "orders-x",
        "orders-\u0663",
        "or ders-3",
        "orders-2147483648",
        "orders-3.-delete",
        "..-3",
    ],
)
def test_other_directories_are_not_taken_for_a_partition(name: str) -> None:
    assert names.parse_partition_directory_name(name) is None


def test_a_topic_may_be_called_like_a_suffix() -> None:
    assert names.parse_partition_directory_name("orders-3.abc-delete-7") == PartitionDirectory("orders-3.abc-delete", 7, "", "")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_legal_topic_names(name: str) -> None:
    assert names.topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "empty"), (".", "'.'"), ("..", "'..'"), ("x" * 250, "249"), ("a/b", "'/'"), ("a b", "' '"), ("\u00fc", "'\u00fc'")],
)
def test_illegal_topic_names_say_why(name: str, problem: str) -> None:
    found = names.topic_name_problem(name)
    assert found is not None
    assert problem in found
