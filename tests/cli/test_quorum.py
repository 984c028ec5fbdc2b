"""``tidelog quorum`` on a real broker, which is a quorum of one."""

import pytest

from tests.cli.command import Command


def test_status(command: Command) -> None:
    (document,) = command("quorum", "status", "--json").documents
    assert document["leader"] == 1
    assert document["leader_epoch"] >= 1
    (voter,) = document["voters"]
    assert (voter["node"], voter["lag"]) == (1, 0)
    assert document["observers"] == []
    assert document["high_watermark"] <= voter["log_end_offset"]
    lines = command("quorum", "status").lines
    assert lines[0].startswith(f"Leader 1 of epoch {document['leader_epoch']}; committed up to offset ")
    assert ["1", "leader"] in [line.split()[:2] for line in lines]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("remove", "9", "--yes"), "node 9 is not among the voters (1); to see the quorum: tidelog quorum status"),
        (("add", "9", "--listener", "127.0.0.1:9093"), "node 9 is not among the observers (none); to see the quorum:"),
        (
            ("add", "1", "--listener", "127.0.0.1:9093"),
            "node 1 is a voter already; to give it another directory, remove it first",
        ),
        (("add", "9", "--listener", "nowhere"), "--listener nowhere: the port is missing; expected host:port"),
        (("remove", "1", "--directory-id", "short", "--yes"), "--directory-id short: expected an id of 22 characters"),
        (("remove", "1"), "Remove node 1 from the voters? 0 would be left"),
        (("status", "-X", "sasl.mechanism=PLAIN"), "-X sasl.mechanism: commands about the quorum speak plaintext only"),
    ],
)
def test_what_is_refused(command: Command, words: tuple[str, ...], message: str) -> None:
    assert command.fails("quorum", *words).startswith(message)


def test_nobody_listens(command: Command) -> None:
    command.bootstrap = "127.0.0.1:1"
    assert command.fails("quorum", "status").startswith("no broker answers at 127.0.0.1:1: connection refused")
