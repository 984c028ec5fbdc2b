"""``tidelog produce`` on a real broker: what lines become, and what is said when they cannot be sent."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command, new_topic_name
from tidelog.cli.errors import CommandFailed
from tidelog.cli.produce import InputMessage, read_json_message


def consumed(command: Command, topic: str) -> list[dict[str, Any]]:
    return sorted(command("consume", topic, "--json").documents, key=lambda message: (message["partition"], message["offset"]))


def test_lines_are_values(command: Command, topic: str) -> None:
    result = command("produce", topic, "--partition", "0", stdin=b"one\r\ntwo\n\nlast")
    assert result.lines == [f"4 messages to {topic}: partition 0 offsets 0 to 3"]
    assert command("consume", topic).lines == ["one", "two", "", "last"]


@pytest.mark.tidelog_only
def test_a_topic_is_created_by_its_first_message(command: Command) -> None:
    name = new_topic_name()
    assert command("produce", name, stdin=b"hello\n").lines == [f"1 message to {name}: partition 0 offset 0"]


def test_keys_and_headers(command: Command, topic: str) -> None:
    command(
        "produce", topic, "-p", "0", "--key-separator", "::", "-H", "source=test", "-H", "a=", "-Z", stdin=b"k::v::w\ngone::\n"
    )
    first, second = consumed(command, topic)
    assert (first["key"], first["value"], first["headers"]) == ("k", "v::w", [["source", "test"], ["a", ""]])
    assert (second["key"], second["value"]) == ("gone", None)


def test_one_key_for_all(command: Command, topic: str) -> None:
    command("produce", topic, "--key", "same", stdin=b"1\n2\n3\n")
    messages = consumed(command, topic)
    assert {message["key"] for message in messages} == {"same"}
    assert len({message["partition"] for message in messages}) == 1


def test_json_lines(command: Command, topic: str) -> None:
    lines = b"""{"key": "k", "value": {"n": 1}, "headers": {"h": "x"}, "partition": 1, "timestamp": 1700000000000}
{"value_base64": "//4=", "partition": 1, "headers": [["h", null]]}
"""
    assert command("produce", topic, "--jsonl", stdin=lines).code == 0
    first, second = consumed(command, topic)
    assert (first["value"], first["timestamp"], first["headers"]) == ('{"n": 1}', 1_700_000_000_000, [["h", "x"]])
    assert (second["value_base64"], second["key"], second["headers"]) == ("//4=", None, [["h", None]])


def test_a_topic_is_copied_by_a_pipe(command: Command, topic: str) -> None:
    command("produce", topic, "-K", ":", "-H", "a=b", stdin=b"".join(b"%d:%d\n" % (n, n) for n in range(50)))
    copy = new_topic_name()
    command("topics", "create", copy, "--partitions", "2")
    assert command("produce", copy, "--jsonl", stdin=command("consume", topic, "--json").out.encode()).code == 0
    assert [{**message, "topic": topic} for message in consumed(command, copy)] == consumed(command, topic)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_compression_and_acks(command: Command, topic: str, compression: str, acks: str) -> None:
    value = b"x" * 1000
    assert command("produce", topic, "-p", "1", "-z", compression, "--acks", acks, stdin=value + b"\n" + value + b"\n").code == 0
    deadline = time.monotonic() + 60
    # Without an acknowledgement it may come later.
    while len(command("consume", topic).lines) < 2:
        assert time.monotonic() < deadline
    assert command("consume", topic).lines == [value.decode()] * 2


def test_a_file_as_json(command: Command, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n")
    (document,) = command("produce", topic, str(path), "-p", "1", "--json").documents
    assert document.pop("seconds") > 0
    assert document == {"topic": topic, "messages": 2, "partitions": [{"partition": 1, "first_offset": 0, "last_offset": 1}]}


def test_a_rate_is_kept(command: Command, topic: str) -> None:
    (document,) = command("produce", topic, "--rate", "50", "--json", stdin=b"x\n" * 11).documents
    assert document["messages"] == 11
    assert document["seconds"] >= 0.2


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["-K", ":"], b"a:b\nno\n", "line 2 has no key separator ':'"),
        (["-K", ""], b"", "Invalid value for --key-separator: the separator must not be empty (try: tidelog produce --help)"),
        (["--jsonl"], b"{", "line 1 is not JSON: "),
        (["--jsonl"], b"[]", "line 1 is not a JSON object"),
        (
            ["--jsonl"],
            b'{"value": "a"}\n{"val": "oops", "key": "b"}',
            "line 2 has an unknown field 'val'; the fields are value, ",
        ),
        (["--jsonl"], b'{"key": "a"}', 'line 1 has no value; to send a null value (a tombstone), write "value": null'),
        (["--acks", "2"], b"", "Invalid value for --acks: '2' is not one of"),
        (["-z", "rar"], b"", "Invalid value for --compression: 'rar' is not one of"),
        (["--partition", "9"], b"x\n", "1 message not delivered (0 were delivered): "),
        (["missing-file"], b"", "missing-file: No such file or directory"),
    ],
)
def test_what_cannot_be_sent(command: Command, topic: str, arguments: list[str], stdin: bytes, message: str) -> None:
    assert command.fails("produce", topic, *arguments, stdin=stdin).startswith(message)


def test_a_message_that_is_too_large(command: Command, topic: str) -> None:
    command("topics", "alter", topic, "--config", "max.message.bytes=100")
    error = command.fails("produce", topic, stdin=b"x" * 500)
    assert error.startswith(
        "1 message not delivered (0 were delivered): the message has 500 bytes, which is more than max.message.bytes of topic "
        f"{topic} (100) allows; message.max.bytes of this client (1,000,000) does allow it."
    )
    assert f"tidelog topics alter {topic} --config max.message.bytes=BYTES" in error


@pytest.mark.parametrize(
    "text",
    [
        b'{"value": "", "partition": "0"}',
        b'{"value": "", "timestamp": true}',
        b'{"value_base64": "?"}',
        b'{"value": "", "headers": 5}',
        b'{"value": "", "headers": ["ab", "abc"]}',
        b'{"value": "", "value_base64": ""}',
        b"{}",
    ],
)
def test_json_messages_that_are_none(text: bytes) -> None:
    with pytest.raises(CommandFailed, match=r"^line 7"):
        read_json_message(text, 7)


def test_a_null_value_is_written_out() -> None:
    for text in (b'{"value": null}', b'{"value_base64": null}', b'{"topic": "t", "offset": 7, "value": null}'):
        assert read_json_message(text, 1) == InputMessage(None)


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        ((), b"fits\n" + b"x" * 3_000_000, "message 2 cannot be sent: Unable to produce message: Broker: Message size too large"),
        (("--jsonl",), b'{"value": "", "partition": 99999999999}', "message 1 cannot be sent: "),
        (("--jsonl",), b'{"value": "", "timestamp": 99999999999999999999}', "message 1 cannot be sent: "),
    ],
)
def test_a_message_that_the_client_refuses_is_one_line(
    command: Command, topic: str, arguments: tuple[str, ...], stdin: bytes, reason: str
) -> None:
    assert command.fails("produce", topic, *arguments, stdin=stdin).startswith(reason)
