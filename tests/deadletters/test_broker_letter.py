"""Letters that a broker wrote for a share group: what they say, which of them can be replayed, and repetitions."""

import secrets
from types import SimpleNamespace
from typing import cast

import pytest

from tests.deadletters.plain import dead_letter
from tests.toolkit_broker import ToolkitBroker, create_topic
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.client.producer import Producer
from tidelog.deadletters import DeadLetters, broker_letter
from tidelog.deadletters.broker_letter import Repetitions, read_broker_letter
from tidelog.deadletters.cluster import DeadLetterCluster
from tidelog.deadletters.dead_letter import DeadLetter
from tidelog.deadletters.letter import Headers, Letter
from tidelog.deadletters.replay import ReplayToOrigin, ReplayToRetryTopic, to_origin

TOPIC = "jobs.workers.dlq"
CLUSTER = DeadLetterCluster("127.0.0.1:1", None)


def headers(**changes: str) -> list[tuple[str, bytes | None]]:
    words = {"topic": "jobs", "partition": "2", "offset": "17", "group": "workers", "delivery.count": "5", **changes}
    words.setdefault("message", "The record has reached the delivery limit of the group.")
    return [(f"__dlq.errors.{name}", text.encode()) for name, text in words.items()]


def of_broker(story: Headers | None = None, *, value: bytes | None = b"v", offset: int = 0) -> DeadLetter:
    pairs = [("trace", b"7"), *(headers() if story is None else story)] if value else headers()
    return dead_letter(
        topic=TOPIC, offset=offset, value=value, headers=pairs, letter=read_broker_letter(pairs, 1_000), timestamp_ms=1_000
    )


def test_a_story_says_where_the_record_came_from_and_why_it_was_given_up() -> None:
    letter = read_broker_letter(headers(), 1_000)
    assert letter is not None
    assert (letter.topic, letter.partition, letter.offset, letter.group, letter.attempts) == ("jobs", 2, 17, "workers", 5)
    assert (letter.exception_class, letter.last_failure_ms, letter.is_from_broker) == ("DeliveryLimit", 1_000, True)
    for message, cause in (
        ("The record was rejected by a member of the group.", "Rejected"),
        ("The record expired before a member of the group received it.", "Expired"),
        ("what another broker says", "DeadLettered"),
    ):
        found = read_broker_letter(headers(message=message), None)
        assert found is not None
        assert (found.exception_class, found.exception_message) == (cause, message)


@pytest.mark.parametrize("name", ["topic", "partition", "offset", "group", "delivery.count"])
def test_half_a_story_is_none(name: str) -> None:
    assert read_broker_letter([pair for pair in headers() if not pair[0].endswith(f".{name}")], 0) is None
    if name not in ("topic", "group"):
        assert read_broker_letter(headers(**{name: "9" * 30}), 0) is None
    assert read_broker_letter([], 0) is read_broker_letter(None, 0) is None


def test_of_two_stories_the_one_counts_that_belongs_to_the_topic() -> None:
    of_worker = dead_letter().letter
    assert of_worker is not None
    both = of_worker.to_headers(headers())

    def story(topic: str) -> Letter | None:
        message = SimpleNamespace(topic=topic, partition=0, offset=0, timestamp=0, key=b"", value=b"", headers_list=both)
        return DeadLetter.of(cast(Message, message)).letter

    assert story("orders.email.dlq") == of_worker
    assert story(TOPIC) == read_broker_letter(headers(), 0)


def test_a_copy_goes_to_its_origin_only_and_loses_what_its_broker_and_its_time_to_live_said() -> None:
    dead = of_broker([*headers(), ("tidelog.expires", b"5"), ("tidelog.due", b"4")])
    assert ReplayToOrigin(CLUSTER).accepts(dead)
    sent = to_origin(dead, partitions=3)
    assert sent == ("jobs", 2, None, b"v", [("trace", b"7"), ("tidelog.due", b"4")])
    with pytest.raises(InvalidArgument, match="has no retry topic"):
        ReplayToRetryTopic(CLUSTER).accepts(dead)


def test_a_letter_that_only_names_its_record_or_belongs_elsewhere_is_not_replayed() -> None:
    assert not of_broker(value=None).is_replayable
    assert not of_broker(headers(group="others")).is_replayable
    assert not of_broker()._replace(topic="jobs.dead").is_replayable


def test_what_a_crash_has_written_twice_is_counted_and_replayed_once(kafka: ToolkitBroker) -> None:
    name = create_topic(kafka.bootstrap, f"jobs-{secrets.token_hex(4)}")
    letters = create_topic(kafka.bootstrap, f"{name}.{name}.dlq")
    with Producer(kafka.bootstrap) as producer:
        for offset in ("17", "18", "17"):
            story = headers(topic=name, group=name, partition="0", offset=offset)
            producer.send(letters, "work", headers=[("trace", b"7"), *story])
    tools = DeadLetters(kafka.bootstrap)
    assert [depth.letters for depth in tools.depth(letters)] == [2]
    assert [count.letters for count in tools.list(letters)] == [2]
    assert tools.replay(letters, to_origin=True, dry_run=True).letters == 2
    done = tools.replay(letters, to_origin=True)
    assert (done.letters, done.targets) == (2, {name: 2})
    assert [depth.letters for depth in tools.depth(letters)] == [0]
    assert tools.replay(letters, to_origin=True).letters == 0


def test_letters_on_a_topic_of_another_name_are_listed_where_brokers_may_write_them(kafka: ToolkitBroker) -> None:
    plain = create_topic(kafka.bootstrap, f"dead-{secrets.token_hex(4)}")
    tools = DeadLetters(kafka.bootstrap)
    with pytest.raises(
        InvalidArgument, match=r"they are called TOPIC\.GROUP\.dlq, or have errors\.deadletterqueue\.group\.enable=true"
    ):
        tools.list(plain)


@pytest.mark.tidelog_only
def test_letters_of_brokers_on_a_topic_of_another_name_are_listed(kafka: ToolkitBroker) -> None:
    name = create_topic(kafka.bootstrap, f"dead-{secrets.token_hex(4)}", config={"errors.deadletterqueue.group.enable": "true"})
    with Producer(kafka.bootstrap) as producer:
        producer.send(name, "work", headers=headers())
    tools = DeadLetters(kafka.bootstrap)
    assert [(count.group, count.letters) for count in tools.list(name)] == [("workers", 1)]
    assert tools.replay(name, to_origin=True).foreign == 1


def test_a_second_letter_about_a_record_is_known_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    repetitions = Repetitions()
    letters = [of_broker(), of_broker(headers(offset="18"), offset=1), of_broker(offset=2), dead_letter(), dead_letter()]
    assert [repetitions.is_repeated(dead) for dead in letters] == [False, False, True, False, False]
    monkeypatch.setattr(broker_letter, "REMEMBERED_MAX", 1)
    assert not repetitions.is_repeated(of_broker(headers(offset="19")))
    assert not repetitions.is_repeated(of_broker()), "so long ago is forgotten"
