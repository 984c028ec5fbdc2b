"""Deduplication in SQLite: marks survive, are forgotten in time, and stay apart by group."""

from pathlib import Path

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.worker.deduplicate import Claim, default_message_id, remember_seconds_of
from tidelog.worker.deduplicate.sqlite import SqliteDeduplicator


class StoppedClock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000


def test_what_is_finished_is_known_after_a_restart_until_it_is_forgotten(tmp_path: Path) -> None:
    clock = StoppedClock()
    first = SqliteDeduplicator(tmp_path / "seen.db", clock=clock)
    first.open("email", 100)
    assert first.claim("a") is Claim.OURS
    first.release("a")
    assert first.claim("a") is Claim.OURS
    first.finish("a")
    first.close()
    second = SqliteDeduplicator(tmp_path / "seen.db", clock=clock)
    second.open("email", 100)
    assert second.claim("a") is Claim.DONE
    clock.ms = 99_999
    assert second.claim("a") is Claim.DONE
    clock.ms = 100_000
    assert second.claim("a") is Claim.OURS
    second.close()


def test_one_that_is_being_handled_is_busy_until_it_ends(tmp_path: Path) -> None:
    seen = SqliteDeduplicator(tmp_path / "seen.db")
    seen.open("email", 100)
    assert [seen.claim("a"), seen.claim("a"), seen.claim("b")] == [Claim.OURS, Claim.BUSY, Claim.OURS]
    seen.release("a")
    assert seen.claim("a") is Claim.OURS
    seen.finish("a")
    assert seen.claim("a") is Claim.DONE
    # What the run before was at when it ended is nobody's any more.
    seen.close()
    seen.open("email", 100)
    assert seen.claim("b") is Claim.OURS
    seen.close()


def test_groups_do_not_see_each_other(tmp_path: Path) -> None:
    one, other = SqliteDeduplicator(tmp_path / "seen.db"), SqliteDeduplicator(tmp_path / "seen.db")
    one.open("email", 100)
    other.open("billing", 100)
    one.finish("a")
    assert (one.claim("a"), other.claim("a")) == (Claim.DONE, Claim.OURS)
    one.close()
    other.close()


def test_old_marks_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.worker.deduplicate.sqlite.FORGET_EVERY", 2)
    clock = StoppedClock()
    seen = SqliteDeduplicator(tmp_path / "seen.db", clock=clock)
    seen.open("email", 1)
    seen.finish("a")
    clock.ms = 5_000
    seen.finish("b")
    assert seen._open.execute("SELECT count(*) FROM seen").fetchone() == (1,)
    seen.close()


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too short"):
        SqliteDeduplicator(tmp_path / "seen.db", remember=10).open("email", 20)
    (tmp_path / "text").write_text("no database at all, just some text that is long enough to be looked at")
    with pytest.raises(InvalidArgument, match="SQLite"):
        SqliteDeduplicator(tmp_path / "text").open("email", 20)


def test_the_id_of_a_message_and_how_long_it_is_remembered() -> None:
    assert default_message_id(Message.of(topic="t", partition=1, offset=2, timestamp=3)) == "t/1/2/3"
    # A topic that was created again has other messages at the same places.
    again = Message.of(topic="t", partition=1, offset=2, timestamp=4)
    assert default_message_id(again) != default_message_id(Message.of(topic="t", partition=1, offset=2, timestamp=3))
    assert default_message_id(Message.of(headers=[("message-id", b"a"), ("message-id", b"b"), ("x", b"c")])) == "b"
    assert remember_seconds_of(1) == 3600
    assert remember_seconds_of(7200) == 14400
