"""``tidelog consume`` on a real broker: from any point, to the end or on and on, filtered and formatted."""

import signal
import subprocess
import sys

import pytest

from tests.cli.command import Command
from tidelog.cli.consume import read_timestamp
from tidelog.cli.errors import CommandFailed

HOUR_MS = 3_600_000
NOON_MS = 1_768_478_400_000  # 2026-01-15T12:00:00Z


@pytest.fixture
def hours(command: Command, topic: str) -> str:
    """Partition 0 has a message of each hour from noon on, partition 1 has one message of noon."""
    lines = [f'{{"value": "h{n}", "key": "k{n}", "partition": 0, "timestamp": {NOON_MS + n * HOUR_MS}}}' for n in range(5)]
    lines.append(f'{{"value": "other", "partition": 1, "timestamp": {NOON_MS}}}')
    assert command("produce", topic, "--jsonl", stdin="\n".join(lines).encode()).code == 0
    return topic


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
        (["--offset", "99"], "--offset 99 is outside: partition 0 has 0 to 5, partition 1 has 0 to 1"),
        (["--offset", "now"], "--offset now: expected a number, beginning, end, or -N"),
        (
            ["--timestamp", "99999999999999999999"],
            "--timestamp 99999999999999999999: expected milliseconds or a time such as 2026-01-31T12:00:00Z",
        ),
        (["--timestamp", "soon"], "--timestamp soon: expected milliseconds or a time such as 2026-01-31T12:00:00Z"),
        (["--partition", "7"], "has no partition 7, only 0 to 1"),
        (["--value", "("], "--value (: missing )"),
        (["--format", "{nothing}"], "--format {nothing}: 'nothing': the fields are topic, partition"),
        (["--format", "xml"], "--format xml: expected text, full, json, or a template"),
        (["--from-beginning", "--offset", "1"], "give only one of --from-beginning, --offset and --timestamp"),
    ],
)
def test_what_makes_no_sense(command: Command, hours: str, arguments: list[str], message: str) -> None:
    assert message in command.fails("consume", hours, *arguments)


def test_a_topic_that_is_not_there_is_not_created(command: Command) -> None:
    assert command.fails("consume", "nothing") == f"there is no topic nothing at {command.bootstrap}"
    assert command.fails("consume", "nothing") == f"there is no topic nothing at {command.bootstrap}"


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


def test_a_reader_that_has_seen_enough(command: Command, topic: str) -> None:
    command("produce", topic, "-p", "0", stdin=b"x" * 100 + b"\n" + b"y\n" * 50_000)
    line = f"{sys.executable} -m tidelog consume {topic} --bootstrap {command.bootstrap} | head -c 3"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "xxx", "")


def test_times() -> None:
    assert read_timestamp("1700000000000") == 1_700_000_000_000
    assert read_timestamp("2026-01-15T13:00:00+01:00") == NOON_MS
    with pytest.raises(CommandFailed):
        read_timestamp("-1")
