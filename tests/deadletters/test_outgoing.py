"""What a replay sends, and to where."""

from tests.deadletters.plain import dead_letter
from tidelog.deadletters.letter import Letter
from tidelog.deadletters.outgoing import to_origin, to_retry_topic


def test_to_the_retry_topic_with_its_story_and_new_attempts() -> None:
    dead = dead_letter(partition=3, key=b"k")
    assert dead.letter is not None
    sent = to_retry_topic(dead, now_ms=77)
    assert sent[:4] == ("orders.email.retry.0", 3, b"k", b"v")
    assert Letter.from_headers(sent.headers) == dead.letter._replace(attempts=0, level=0, due_ms=77, replays=1)
    assert sent.headers[0] == ("a", b"1")
    again = to_retry_topic(dead._replace(letter=dead.letter._replace(replays=1)), now_ms=78)
    assert ("tidelog.replays", b"2") in again.headers


def test_to_the_origin_as_it_came() -> None:
    dead = dead_letter(partition=3, key=b"k")
    assert dead.letter is not None
    moved = dead._replace(letter=dead.letter._replace(partition=5))
    assert to_origin(moved, partitions=6) == ("orders", 5, b"k", b"v", [("a", b"1")])
    assert to_origin(moved, partitions=5).partition is None


def test_only_a_story_of_its_own_topic_may_be_replayed() -> None:
    dead = dead_letter()
    assert dead.is_replayable
    assert not dead._replace(letter=None).is_replayable
    assert not dead._replace(topic="payments.email.dlq").is_replayable
    assert not dead_letter(group="other").is_replayable
