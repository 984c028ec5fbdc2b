"""``tidelog consume --group`` on a real broker: it goes on where it was, and commits what it printed, no more."""

import signal
import subprocess
import sys
import time

import pytest

from tests.cli.command import Command
from tests.cli.group_members import commit, committed, member, new_group_name

COMMIT_SECONDS_MAX = 120.0


@pytest.fixture
def group() -> str:
    return new_group_name()


@pytest.fixture
def numbers(command: Command, topic: str) -> str:
    """0 to 4 in partition 0, 5 and 6 in partition 1."""
    command("produce", topic, "-p", "0", stdin=b"0\n1\n2\n3\n4\n")
    command("produce", topic, "-p", "1", stdin=b"5\n6\n")
    return topic


def test_it_goes_on_where_it_was(command: Command, numbers: str, group: str) -> None:
    assert sorted(command("consume", numbers, "--group", group).lines) == list("0123456")
    assert committed(command, group) == {(numbers, 0): 5, (numbers, 1): 2}
    assert command("consume", numbers, "--group", group).lines == []
    command("produce", numbers, "-p", "1", stdin=b"7\n")
    assert command("consume", numbers, "-g", group).lines == ["7"]
    assert command("consume", numbers, "--group", group, "--from-beginning").lines == [], "the group has offsets"


def test_only_what_was_printed_is_committed(command: Command, numbers: str, group: str) -> None:
    printed = [command("consume", numbers, "--group", group, "--count", "1").lines for _ in range(7)]
    assert sorted(line for (line,) in printed) == list("0123456")
    assert committed(command, group) == {(numbers, 0): 5, (numbers, 1): 2}


def test_messages_that_are_filtered_out_are_done_with(command: Command, numbers: str, group: str) -> None:
    assert command("consume", numbers, "--group", group, "--value", "[36]").lines in (["3", "6"], ["6", "3"])
    assert committed(command, group) == {(numbers, 0): 5, (numbers, 1): 2}


def test_from_a_reset(command: Command, numbers: str, group: str) -> None:
    commit(command, group, numbers, {0: 3, 1: 2})
    assert command("consume", numbers, "--group", group, "--json").documents[0]["offset"] == 3
    assert committed(command, group) == {(numbers, 0): 5, (numbers, 1): 2}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_beside_another_member(command: Command, numbers: str, group: str, protocol: str) -> None:
    """A member that has one of the two partitions and does not read: the other one is printed."""
    with member(command, group, numbers, group_protocol=protocol) as other:
        words = ["consume", numbers, "--group", group, "--tail", "--from-beginning", "-X", f"group.protocol={protocol}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tidelog", *words, "--bootstrap", command.bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + COMMIT_SECONDS_MAX
            while not committed(command, group):
                assert time.monotonic() < deadline, "nothing was printed and committed"
                other.poll(0.05)
            ((_, partition),) = committed(command, group)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=30)
            assert (process.returncode, errors) == (130, "")
            assert out.splitlines() == (["5", "6"] if partition else list("01234"))
        finally:
            process.kill()
            process.communicate()


def test_more_members_than_partitions(command: Command, group: str) -> None:
    topic = f"one-{group}"
    assert command("topics", "create", topic, "--partitions", "1").code == 0
    command("produce", topic, stdin=b"x\n")
    with member(command, group, topic, group_protocol="consumer"):
        result = command("consume", topic, "--group", group, "-X", "group.protocol=consumer")
        assert result.lines == []
        assert result.err == f"warning: all partitions of {topic} are with other members of {group}\n"


def test_tail_begins_at_the_end(command: Command, numbers: str, group: str) -> None:
    words = ["consume", numbers, "--group", group, "--tail", "--count", "1", "--bootstrap", command.bootstrap]
    process = subprocess.Popen([sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        while process.poll() is None:
            assert time.monotonic() < deadline
            command("produce", numbers, "-p", "0", stdin=b"new\n")
        out, _ = process.communicate(timeout=30)
        assert out == "new\n"
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_has_seen_enough(command: Command, topic: str, group: str) -> None:
    command("produce", topic, "-p", "0", stdin=b"x" * 100 + b"\n" + b"y\n" * 50_000)
    line = f"{sys.executable} -m tidelog consume {topic} --group {group} --bootstrap {command.bootstrap} | head -c 3"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "xxx", "")
    assert sum(committed(command, group).values()) < 50_001


@pytest.mark.parametrize("words", [["--partition", "0"], ["--offset", "3"], ["--timestamp", "2026-01-01"]])
def test_what_does_not_go_with_a_group(command: Command, numbers: str, words: list[str]) -> None:
    said = command.fails("consume", numbers, "--group", "g", *words)
    assert said == f"{words[0]} does not go with --group: its offsets say where it reads (tidelog groups reset)"


def test_a_topic_that_is_not_there(command: Command) -> None:
    assert command.fails("consume", "nothing", "--group", "g") == f"there is no topic nothing at {command.bootstrap}"
