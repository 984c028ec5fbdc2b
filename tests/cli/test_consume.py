"""``tidelog consume`` on a real broker: from any point, to the end or continuously, filtered and formatted; and as a member of a
group, which continues where it was and commits what it printed, no more."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.cli.group_members import commit, committed, member, new_group_name
from tidelog.client.producer import Producer
from tidelog.client.transaction import Transaction

COMMIT_SECONDS_MAX = 120.0
TAIL_STARTS_SECONDS = 4.0
HOUR_MS = 3_600_000
NOON_MS = 1_768_478_400_000  # 2026-01-15T12:00:00Z


@pytest.fixture
def hours(command: Command, topic: str) -> str:
    """Partition 0 has a message of each hour from noon on, partition 1 has one message of noon."""
    lines = [f'{{"value": "h{n}", "key": "k{n}", "partition": 0, "timestamp": {NOON_MS + n * HOUR_MS}}}' for n in range(5)]
    lines.append(f'{{"value": "other", "partition": 1, "timestamp": {NOON_MS}}}')
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    return topic


def no_such_topic(command: Command) -> str:
    return f"there is no topic nothing at {command.bootstrap}; to see the topics: tidelog topics list"


def values(command: Command, *words: str) -> list[str]:
    return sorted(command("consume", *words).lines)


def test_everything_by_default(command: Command, hours: str) -> None:
    everything = ["h0", "h1", "h2", "h3", "h4", "other"]
    assert values(command, hours) == everything
    assert values(command, hours, "--from-beginning") == everything
    assert values(command, hours, "--offset", "beginning") == everything
    assert values(command, hours, "--offset", "end") == []


def test_one_partition_in_order(command: Command, hours: str) -> None:
    assert command("consume", hours, "--partition", "0").lines == ["h0", "h1", "h2", "h3", "h4"]


def test_from_an_offset(command: Command, hours: str) -> None:
    assert values(command, hours, "-p", "0", "--offset", "3") == ["h3", "h4"]
    assert values(command, hours, "-p", "0", "--offset", "5") == []
    assert values(command, hours, "--offset", "-2") == ["h3", "h4", "other"]
    assert values(command, hours, "--offset", "3") == ["h3", "h4"]


def test_from_a_time(command: Command, hours: str) -> None:
    assert values(command, hours, "--timestamp", str(NOON_MS + 2 * HOUR_MS)) == ["h2", "h3", "h4"]
    assert values(command, hours, "--timestamp", "2026-01-15T14:00:01Z") == ["h3", "h4"]
    assert values(command, hours, "--timestamp", "2099-01-01") == []


def test_so_many(command: Command, hours: str) -> None:
    assert command("consume", hours, "-p", "0", "--count", "2").lines == ["h0", "h1"]
    assert command("consume", hours, "-p", "0", "--max-messages", "9").lines == ["h0", "h1", "h2", "h3", "h4"]


def test_filters(command: Command, hours: str) -> None:
    assert values(command, hours, "--value", "[12]$") == ["h1", "h2"]
    assert values(command, hours, "--key", "^k[034]") == ["h0", "h3", "h4"]
    assert values(command, hours, "--key", "k", "--value", "other") == []
    assert command("consume", hours, "-p", "0", "--value", "[34]", "-n", "1").lines == ["h3"]


def test_formats(command: Command, hours: str) -> None:
    last = (hours, "-p", "0", "-o", "4")
    assert command("consume", *last, "--format", "full").lines == ["0:4 2026-01-15T16:00:00.000Z k4 h4"]
    assert command("consume", *last, "--format", "{partition}/{offset} {key}={value}").lines == ["0/4 k4=h4"]
    assert command("consume", *last, "--format", "json").out == command("consume", *last, "--json").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offset", "99"], "--offset 99 is out of range: partition 0 has 0 to 5, partition 1 has 0 to 1"),
        (["--offset", "now"], "--offset now: expected a number, beginning, end, or -N"),
        (
            ["--timestamp", "99999999999999999999"],
            "--timestamp 99999999999999999999: expected milliseconds or a time such as 2026-01-31T12:00:00Z",
        ),
        (["--timestamp", "soon"], "--timestamp soon: expected milliseconds or a time such as 2026-01-31T12:00:00Z"),
        (["--partition", "7"], "has no partition 7, only 0 to 1"),
        (["--value", "("], "--value (: missing )"),
        (["--format", "{nothing}"], "--format {nothing}: 'nothing': the fields are topic, partition"),
        (["--format", "xml"], "--format xml: expected text, full, json, jsonl, or a template"),
        (["--from-beginning", "--offset", "1"], "give only one of --from-beginning, --offset and --timestamp"),
    ],
)
def test_what_makes_no_sense(command: Command, hours: str, arguments: list[str], message: str) -> None:
    assert message in command.fails("consume", hours, *arguments)


def test_a_topic_that_is_not_there_is_not_created(command: Command) -> None:
    assert command.fails("consume", "nothing") == no_such_topic(command)
    assert command.fails("consume", "nothing") == no_such_topic(command)


def test_tail_goes_on_until_it_is_interrupted(command: Command, hours: str) -> None:
    words = ["consume", hours, "--tail", "--offset", "4", "--bootstrap", command.bootstrap]
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "h4\n"
        for partition in ("0", "1", "0", "1"):
            command("produce", hours, "--partition", partition, stdin=b"new\n")
            assert process.stdout.readline() == "new\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        assert (process.returncode, out, errors) == (130, "", "")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def unfinished(command: Command, topic: str) -> Iterator[Transaction]:
    """Partition 0 has three messages, and after them as many of a transaction that is open."""
    command("produce", topic, "--partition", "0", stdin=b"c0\nc1\nc2\n")
    with Producer(command.bootstrap, transactional_id=f"{topic}-writer") as producer:
        transaction = producer.transaction()
        transaction.begin()
        for number in range(3):
            transaction.send(topic, f"t{number}".encode(), partition=0)
        producer.flush()
        yield transaction
        transaction.abort()


@pytest.mark.usefixtures("unfinished")
def test_the_end_is_before_a_transaction_that_is_open(command: Command, topic: str) -> None:
    assert values(command, topic) == ["c0", "c1", "c2"]
    assert values(command, topic, "--offset", "-2") == ["c1", "c2"]
    assert values(command, topic, "--offset", "end") == []
    assert values(command, topic, "--timestamp", "2099-01-01") == []
    assert values(command, topic, "--offset", "-2", "-X", "isolation.level=read_uncommitted") == ["t1", "t2"]
    (document,) = command("topics", "hotkeys", topic, "--sample", "2", "--json").documents
    assert document["messages"] == 2


def test_tail_shows_a_transaction_that_was_open_when_it_started(command: Command, topic: str, unfinished: Transaction) -> None:
    words = ["consume", topic, "--tail", "--count", "3", "--bootstrap", command.bootstrap]
    process = subprocess.Popen([sys.executable, "-m", "tidelog", *words], stdout=subprocess.PIPE, text=True)
    try:
        # By then it has looked up where to start.
        time.sleep(TAIL_STARTS_SECONDS)
        unfinished.commit()
        assert process.communicate(timeout=30)[0].splitlines() == ["t0", "t1", "t2"]
    finally:
        process.kill()
        process.communicate()


def test_a_reader_that_has_seen_enough(command: Command, topic: str) -> None:
    command("produce", topic, "-p", "0", stdin=b"x" * 100 + b"\n" + b"y\n" * 50_000)
    line = f"{sys.executable} -m tidelog consume {topic} --bootstrap {command.bootstrap} | head -c 3"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "xxx", "")


# -- as a member of a group ---------------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> str:
    return new_group_name()


@pytest.fixture
def numbers(command: Command, topic: str) -> str:
    """0 to 4 in partition 0, 5 and 6 in partition 1."""
    command("produce", topic, "-p", "0", stdin=b"0\n1\n2\n3\n4\n")
    command("produce", topic, "-p", "1", stdin=b"5\n6\n")
    return topic


def test_a_group_continues_where_it_was(command: Command, numbers: str, group: str) -> None:
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
        assert result.err == f"warning: all partitions of {topic} are assigned to other members of {group}\n"


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


def test_a_reader_of_a_group_that_has_seen_enough(command: Command, topic: str, group: str) -> None:
    command("produce", topic, "-p", "0", stdin=b"x" * 100 + b"\n" + b"y\n" * 50_000)
    line = f"{sys.executable} -m tidelog consume {topic} --group {group} --bootstrap {command.bootstrap} | head -c 3"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "xxx", "")
    assert sum(committed(command, group).values()) < 50_001


@pytest.mark.parametrize("words", [["--partition", "0"], ["--offset", "3"], ["--timestamp", "2026-01-01"]])
def test_what_does_not_go_with_a_group(command: Command, numbers: str, words: list[str]) -> None:
    said = command.fails("consume", numbers, "--group", "g", *words)
    assert said.startswith(f"{words[0]} does not go with --group: a group reads from its committed offsets; ")
    assert said.endswith(f"tidelog groups reset g --topic {numbers}")


def test_a_group_of_a_missing_topic(command: Command) -> None:
    assert command.fails("consume", "nothing", "--group", "g") == no_such_topic(command)


@pytest.mark.tidelog_only
def test_several_topics_and_a_pattern(command: Command, hours: str) -> None:
    second = f"{hours}-second"
    assert command("produce", second, stdin=b"more\n").code == 0
    everything = ["h0", "h1", "h2", "h3", "h4", "more", "other"]
    assert values(command, hours, second) == everything
    assert values(command, "--pattern", f"{hours}.*") == everything
    assert values(command, "--pattern", hours) == [*everything[:5], "other"]
    group = new_group_name()
    assert values(command, hours, second, "--group", group) == everything
    assert values(command, hours, second, "--group", group) == []
    assert "no topic matches" in command.fails("consume", "--pattern", "nothing-.*")
    assert "which topics?" in command.fails("consume")
    assert "which topics?" in command.fails("consume", hours, "--pattern", hours)


def test_an_end(command: Command, hours: str) -> None:
    assert values(command, hours, "-p", "0", "--offset", "1", "--until-offset", "3") == ["h1", "h2"]
    assert values(command, hours, "--until", "2026-01-15T14:00:00Z") == ["h0", "h1", "other"]
    assert values(command, hours, "--until-offset", "0") == []
    assert "only one of" in command.fails("consume", hours, "--until-offset", "1", "--until", "1")
    assert "--tail has no end" in command.fails("consume", hours, "--until-offset", "1", "--tail")


def test_raw_bytes_and_a_whole_file(command: Command, topic: str) -> None:
    content = bytes(range(256)) * 3
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": command.bootstrap}
    words = [sys.executable, "-m", "tidelog"]
    subprocess.run([*words, "produce", topic, "--whole"], input=content, env=environment, check=True)
    read = subprocess.run([*words, "consume", topic, "--raw"], env=environment, stdout=subprocess.PIPE, check=True)
    assert read.stdout == content


@pytest.mark.tidelog_only
def test_lines_of_json_with_times_can_be_sent_back(command: Command, hours: str) -> None:
    lines = command("consume", hours, "-p", "0", "--jsonl").lines
    assert json.loads(lines[1])["timestamp"] == "2026-01-15T13:00:00.000Z"
    copy = f"{hours}-copy"
    assert command("produce", copy, "--jsonl", "-p", "0", stdin="\n".join(lines).encode()).code == 0
    assert command("consume", copy, "--format", "{timestamp}").lines == [str(NOON_MS + n * HOUR_MS) for n in range(5)]
