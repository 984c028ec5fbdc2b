"""From a worker that fails to one that does not: its dead letters are listed, shown, replayed and handled."""

import io
import sys

import pytest

from tests.cli.command import Command
from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.message import Message


@pytest.mark.parametrize("exactly_once", [False, True])
def test_fail_look_replay_handle(
    kafka: ToolkitBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, exactly_once: bool
) -> None:
    place = Place(kafka.bootstrap)
    command = Command(kafka.bootstrap, capsys, monkeypatch)
    place.send(range(10), key=str, headers=[("trace", b"7")])
    broken = place.worker(retries=1, exactly_once=exactly_once)

    @broken.handler
    def fail(message: Message) -> None:
        if int(message.value or b"") % 2:
            raise KeyError(f"no odd ones: {message.text()}")

    with running(broken) as run:
        run.until(lambda: broken.metrics().dead == 5, "five are dead")
    (count,) = command("dlq", "list", place.dead_letters, "--json").documents
    assert (count["group"], count["error"], count["letters"]) == (place.group, "KeyError", 5)
    shown = command("dlq", "show", place.dead_letters).out
    assert "KeyError: 'no odd ones: " in shown
    assert "raise KeyError" in shown
    assert "trace: 7" in shown

    monkeypatch.setattr(sys, "stdin", io.StringIO())
    (replayed,) = command("dlq", "replay", place.dead_letters, "--json").documents
    assert replayed["targets"] == {place.retries(0): 5}

    mended = place.worker(retries=1, exactly_once=exactly_once)
    seen: list[int] = []

    @mended.handler
    def handle(message: Message) -> None:
        assert message.headers["trace"] == b"7"
        seen.append(int(message.value or b""))

    with running(mended) as run:
        run.until(lambda: len(seen) >= 5, "the replayed ones are handled")
    assert sorted(seen) == [1, 3, 5, 7, 9]
    (depth,) = command("dlq", "depth", place.dead_letters, "--json").documents
    assert depth["letters"] == 0
