"""``tidelog groups reset`` on a real broker: every way to say where to, dry runs, files, groups in use."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import Command
from tests.cli.group_members import commit, committed, member, new_group_name
from tidelog.cli.errors import CommandFailed
from tidelog.cli.groups_reset import bounded, read_csv, read_topics, shifted
from tidelog.client.admin import PartitionBounds
from tidelog.client.topic_partition import TopicPartition

HOUR_MS = 3_600_000
NOON_MS = 1_768_478_400_000  # 2026-01-15T12:00:00Z


@pytest.fixture
def hours(command: Command, topic: str) -> str:
    """Partition 0 has a message of each hour from noon on, ten of them; partition 1 has four, of the last hours."""
    lines = [{"value": "x", "partition": 0, "timestamp": NOON_MS + number * HOUR_MS} for number in range(10)]
    lines += [{"value": "x", "partition": 1, "timestamp": NOON_MS + number * HOUR_MS} for number in range(6, 10)]
    assert command("produce", topic, "--jsonl", stdin="\n".join(map(json.dumps, lines)).encode()).code == 0
    return topic


@pytest.fixture
def group(command: Command, hours: str) -> str:
    """At 5 in partition 0 and at 2 in partition 1."""
    name = new_group_name()
    commit(command, name, hours, {0: 5, 1: 2})
    return name


def reset(command: Command, group: str, *words: str) -> dict[int, int]:
    """Where it put each partition; that is what is committed then."""
    documents = command("groups", "reset", group, *words, "--execute", "--json").documents
    assert all(document["executed"] and document["group"] == group for document in documents)
    after = {(document["topic"], document["partition"]): document["after"] for document in documents}
    assert after.items() <= committed(command, group).items()
    return {partition: offset for (_, partition), offset in after.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 4}),
        (["--to-current"], {0: 5, 1: 2}),
        (["--to-offset", "3"], {0: 3, 1: 3}),
        (["--to-offset", "7"], {0: 7, 1: 4}),
        (["--shift-by", "-2"], {0: 3, 1: 0}),
        (["--shift-by", "-4"], {0: 1, 1: 0}),
        (["--shift-by", "3"], {0: 8, 1: 4}),
        (["--to-datetime", "2026-01-15T19:00:00Z"], {0: 7, 1: 1}),
        (["--to-datetime", "2026-01-15T20:00:00.001+01:00"], {0: 8, 1: 2}),
        (["--to-datetime", str(NOON_MS + 6 * HOUR_MS)], {0: 6, 1: 0}),
        (["--to-datetime", "2099-01-01T00:00:00Z"], {0: 10, 1: 4}),
        (["--by-duration", "PT0S"], {0: 10, 1: 4}),
        (["--by-duration", "P20000D"], {0: 0, 1: 0}),
    ],
)
def test_where_to(command: Command, group: str, words: list[str], expected: dict[int, int]) -> None:
    assert reset(command, group, "--all-topics", *words) == expected


def test_by_duration_counts_from_now(command: Command, topic: str) -> None:
    """Messages of long ago, then one of now."""
    group = new_group_name()
    command("produce", topic, "--jsonl", stdin=json.dumps({"value": "old", "partition": 0, "timestamp": NOON_MS}).encode())
    command("produce", topic, "-p", "0", stdin=b"new\n")
    for text in ("1h", "PT1H"):
        assert reset(command, group, "--topic", f"{topic}:0", "--by-duration", text) == {0: 1}


def test_some_partitions(command: Command, hours: str, group: str) -> None:
    assert reset(command, group, "--topic", f"{hours}:1", "--to-earliest") == {1: 0}
    assert committed(command, group) == {(hours, 0): 5, (hours, 1): 0}
    assert reset(command, group, "-t", f"{hours}:0,1", "--to-latest") == {0: 10, 1: 4}


def test_a_new_group(command: Command, hours: str) -> None:
    group = new_group_name()
    assert reset(command, group, "--topic", hours, "--to-earliest") == {0: 0, 1: 0}
    another = new_group_name()
    assert command("groups", "reset", "--group", another, "--topic", hours, "--to-current", "--execute").code == 0
    assert committed(command, another) == {(hours, 0): 10, (hours, 1): 4}


def test_a_dry_run_changes_nothing(command: Command, hours: str, group: str) -> None:
    before = committed(command, group)
    for words in ([], ["--dry-run"]):
        lines = command("groups", "reset", group, "--topic", hours, "--to-offset", "7", *words).lines
        assert lines[-1] == "Nothing was changed. To apply it, repeat the command with --execute."
        rows = [line.split(maxsplit=5) for line in lines]
        assert [hours, "0", "5", "7", "+2"] in rows
        assert [hours, "1", "2", "4", "+2", "7 is beyond the end"] in [[cell.strip() for cell in row] for row in rows]
    assert committed(command, group) == before
    assert command("groups", "reset", group, "--all-topics", "--shift-by", "1", "--execute").lines[-1] == (
        f"Reset 2 partitions of {group}."
    )
    assert committed(command, group) == {(hours, 0): 6, (hours, 1): 3}


def test_to_a_file_and_back(command: Command, hours: str, group: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    exported = command("groups", "reset", group, "--all-topics", "--to-current", "--export")
    assert exported.lines == [f"{hours},0,5", f"{hours},1,2"]
    file.write_text(exported.out)
    reset(command, group, "--all-topics", "--to-latest")
    assert reset(command, group, "--from-file", str(file)) == {0: 5, 1: 2}
    file.write_text(f'"{group}","{hours}",1,1\n"other","{hours}",0,0\n')
    assert reset(command, group, "--from-file", str(file)) == {1: 1}
    assert committed(command, group) == {(hours, 0): 5, (hours, 1): 1}
    plan = command("groups", "reset", group, "--from-file", "-", "--export", stdin=f"{hours},0,9999\n".encode())
    assert plan.lines == [f"{hours},0,10"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_in_use_is_refused(command: Command, hours: str, group: str, protocol: str) -> None:
    before = committed(command, group)
    with member(command, group, hours, group_protocol=protocol):
        said = command.fails("groups", "reset", group, "--all-topics", "--to-earliest", "--execute")
        expected = f"group {group} cannot be reset while it is in use: it is Stable with 1 member (the-test at /127.0.0.1)"
        assert said == f"{expected}; stop its members first"
    assert committed(command, group) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--all-topics"],
            "where should the offsets go? Give one of --to-offset, --to-earliest, --to-latest",
        ),
        (["--all-topics", "--to-latest", "--shift-by", "1"], "give only one of --to-latest, --shift-by"),
        (["--to-latest"], "which topics? Give --topic TOPIC, or --all-topics"),
        (["--to-latest", "--all-topics", "--topic", "x"], "which topics? Give --topic TOPIC, or --all-topics"),
        (["--to-latest", "--topic", "nothing"], "there is no topic nothing"),
        (["--to-latest", "--topic", "TOPIC:7"], "has no partition 7, only 0 to 1"),
        (["--to-latest", "--topic", "TOPIC:a"], "expected TOPIC or TOPIC:0,1,2"),
        (["--to-datetime", "soon", "--all-topics"], "--to-datetime soon: expected milliseconds or a time such as"),
        (["--by-duration", "soon", "--all-topics"], "--by-duration soon: expected a duration such as PT1H30M, P7D or 90m"),
        (["--from-file", "/nowhere/at/all.csv"], "/nowhere/at/all.csv: No such file or directory"),
        (["--to-latest", "--all-topics", "--execute", "--dry-run"], "give only one of --execute and --dry-run"),
        (["--to-latest", "--all-topics", "--group", "another"], "the command line names two groups, "),
    ],
)
def test_what_makes_no_sense(command: Command, hours: str, group: str, words: list[str], message: str) -> None:
    assert message in command.fails("groups", "reset", group, *(word.replace("TOPIC", hours) for word in words))


def test_nothing_to_go_by(command: Command, hours: str) -> None:
    assert command.fails("groups", "reset", "--to-latest", "--all-topics") == "no group is given; add its name"
    said = command.fails("groups", "reset", "fresh", "--all-topics", "--to-latest")
    assert said == "group fresh has no committed offsets to move; name the topics with --topic"
    said = command.fails("groups", "reset", "fresh", "--topic", hours, "--shift-by", "1")
    assert said == f"{hours}-0 has no committed offset to shift; use --to-earliest or another target"


def test_a_file_that_names_what_is_not_there(command: Command, group: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text("nothing,0,1\n")
    said = command.fails("groups", "reset", group, "--from-file", str(file))
    assert said == f"there is no partition nothing-0 at {command.bootstrap}"


# -- from numbers and lines alone ---------------------------------------------------------------------------------------------

ORDERS = TopicPartition("orders", 3)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**63 - 1), st.none() | st.integers(0, 2**62))
def test_an_offset_is_within_the_log(start: int, more: int, wanted: int, before: int | None) -> None:
    reset = bounded(ORDERS, before, wanted, PartitionBounds(start, start + more))
    assert start <= reset.after <= start + more
    assert (reset.after == wanted) == (reset.note == "")
    assert reset.before == before


def test_notes() -> None:
    assert bounded(ORDERS, None, 3, PartitionBounds(5, 9)).note == "3 is below the start"
    assert bounded(ORDERS, None, 10, PartitionBounds(5, 9)).note == "10 is beyond the end"
    assert bounded(ORDERS, None, 9, PartitionBounds(5, 9)).note == ""


def test_a_shift() -> None:
    assert shifted(ORDERS, 7, -1, PartitionBounds(5, 9)).after == 6
    with pytest.raises(CommandFailed, match="orders-3 has no committed offset"):
        shifted(ORDERS, None, -1, PartitionBounds(5, 9))


def test_topics() -> None:
    counts = {"orders": 3, "with:colon": 1}
    assert read_topics(["orders"], counts) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert read_topics(["orders:2,0", "orders:2"], counts) == [("orders", 0), ("orders", 2)]
    for wrong in ("orders:", "orders:x", "orders:-1", "orders:3", "nothing", ":1"):
        with pytest.raises(CommandFailed):
            read_topics([wrong], counts)


def test_files() -> None:
    assert read_csv("f", ["orders,0,5", "", '"orders",1,0'], "billing") == {("orders", 0): 5, ("orders", 1): 0}
    assert read_csv("f", ["billing,orders,0,5", "other,orders,0,9"], "billing") == {("orders", 0): 5}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["orders,0"], "f, line 1: expected topic,partition,offset"),
        (["orders,0,5", "a,b,c,d,e"], "f, line 2: expected topic,partition,offset"),
        (["orders,zero,5"], "f, line 1: expected whole numbers"),
        (["orders,0,-5"], "f, line 1: expected whole numbers"),
        (["orders,0,5", "orders,0,6"], "f, line 2: orders-0 occurs twice"),
        ([], "f has no offsets for group billing"),
        (["other,orders,0,5"], "f has no offsets for group billing, only for other"),
    ],
)
def test_files_that_make_no_sense(lines: list[str], message: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        read_csv("f", lines, "billing")
    assert str(caught.value).startswith(message)
