"""Dead letters of share groups: what they say, when their record is archived, and what a crash leaves."""

from typing import Any

import pytest

from tests.broker.handlers.share_client import GROUP, ShareMember, configure, share_machine
from tests.broker.handlers.test_share_groups import member_of, wait_ready
from tests.broker.harness import FakeClient, Machine
from tidelog.broker.share_dead_letters import DeadLetterWriter
from tidelog.coordinator.errors import CoordinatorNotAvailable
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.records.batch import read_records
from tidelog.records.header import iterate_headers
from tidelog.records.record import Record
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import encode_request
from tidelog.wire.protocol import ApiKey

RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT
DEAD = "orders.dead"
MANY = 100_000


def dead_machine(**configs: str) -> tuple[Machine, FakeClient, ShareMember]:
    """A broker whose topic of letters has one partition, and a member that holds three records."""
    machine, client, topic_id = share_machine(errors_deadletterqueue_topic_name=DEAD)
    assert configure(client, **configs) == 0
    client.create_topic(DEAD, errors_deadletterqueue_group_enable="true")
    client.append(count=3)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 2, 1)]
    return machine, client, member


def letters(machine: Machine, topic: str = DEAD) -> list[Record]:
    data = bytes(machine.client().read(topic).records or b"")
    found: list[Record] = []
    for position, header in iterate_headers(data):
        found += read_records(data, position, header, size_max=MANY, count_max=MANY)
    return found


def story(letter: Record) -> dict[str, str]:
    prefix = "__dlq.errors."
    return {name.removeprefix(prefix): (text or b"").decode() for name, text in letter.headers if name.startswith(prefix)}


def ask_later(member: ShareMember, first: int, last: int, *types: int) -> None:
    """Acknowledge, without waiting for the answer."""
    topics = member.topics([(0, first, last, types)])
    fields = {"group_id": GROUP, "member_id": member.name, "share_session_epoch": member.epoch, "topics": topics}
    member.client.send(ApiKey.SHARE_ACKNOWLEDGE, 1, encode_request(ApiKey.SHARE_ACKNOWLEDGE, 1, fields))


def test_what_is_rejected_or_reaches_the_limit_has_a_letter_and_is_archived() -> None:
    machine, _, member = dead_machine(share_delivery_count_limit="2")
    assert member.settle(0, 2, RELEASE, REJECT, AcknowledgeType.ACCEPT) == ErrorCode.NONE
    assert member.acquired() == [(0, 0, 2)]
    assert member.settle(0, 0, RELEASE) == ErrorCode.NONE
    first, second = map(story, letters(machine))
    assert first == {
        "topic": "orders",
        "partition": "0",
        "offset": "1",
        "group": GROUP,
        "delivery.count": "1",
        "message": "The record was rejected by a member of the group.",
    }
    assert (second["offset"], second["delivery.count"]) == ("0", "2")
    assert second["message"] == "The record has reached the delivery limit of the group."
    assert [(letter.key, letter.value) for letter in letters(machine)] == [(None, None)] * 2
    machine.crash()
    wait_ready(machine)
    assert member_of(machine, member.topic_id).acquired(max_wait_ms=500) == []
    assert machine.facts("unexpected_error") == []


def test_a_group_that_wants_copies_has_the_record_in_its_letter() -> None:
    machine, client, member = dead_machine(errors_deadletterqueue_copy_record_enable="true")
    originals = letters(machine, "orders")
    assert member.settle(0, 2, REJECT) == ErrorCode.NONE
    copies = letters(machine)
    assert [letter[2:4] for letter in copies] == [record[2:4] for record in originals]
    assert copies[0].value is not None
    assert [story(letter)["offset"] for letter in copies] == ["0", "1", "2"]
    assert configure(client, errors_deadletterqueue_topic_name="") == 0


def test_a_record_whose_letter_cannot_be_written_is_neither_delivered_nor_archived() -> None:
    machine, client, topic_id = share_machine(errors_deadletterqueue_topic_name=DEAD)
    client.append(count=2)
    member, other = member_of(machine, topic_id), member_of(machine, topic_id, "other")
    assert member.acquired() == [(0, 1, 1)]
    began_ms = machine.clock.monotonic_ms()
    assert member.settle(0, 0, REJECT) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert machine.clock.monotonic_ms() - began_ms < 1_000, "nobody waits for what only an administrator can do"
    assert other.acquired(max_wait_ms=2_000) == []
    refused = machine.facts("dead_letter_not_written")
    assert refused[0]["error"] == "INVALID_TOPIC_EXCEPTION: The topic of dead letters, orders.dead, does not exist."
    client.create_topic(DEAD, errors_deadletterqueue_group_enable="true")
    machine.run_until(lambda: bool(letters(machine)))
    assert [story(letter)["offset"] for letter in letters(machine)] == ["0"]
    assert member.settle(1, 1, REJECT) == ErrorCode.NONE
    assert [story(letter)["offset"] for letter in letters(machine)] == ["0", "1"]


def test_a_topic_is_not_the_topic_of_its_own_dead_letters() -> None:
    machine, client, topic_id = share_machine(
        topic_configs={"errors_deadletterqueue_group_enable": "true"}, errors_deadletterqueue_topic_name="orders"
    )
    client.append(count=1)
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 0, 1)]
    response = member.acknowledge((0, 0, 0, [REJECT]))
    (refused,) = response.responses[0].partitions
    assert (refused.error_code, refused.error_message) == (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        "The records are kept back until their dead letters can be written. "
        "The topic of dead letters, orders, is the topic of the records themselves.",
    )
    assert [record.offset for record in letters(machine, "orders")] == [0], "no letter"


def test_a_rejection_waits_for_a_leader_of_the_letters_that_is_away_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, _, member = dead_machine()

    def is_away(*_: object) -> None:
        raise CoordinatorNotAvailable("broker 2 does not answer")

    before = len(member.client.replies)
    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterWriter, "send", is_away)
        ask_later(member, 0, 0, REJECT)
        machine.run_for(10_000)
        assert len(member.client.replies) == before
        machine.run_for(6_000)
        assert len(member.client.replies) == before + 1
    machine.run_until(lambda: bool(letters(machine)))


def test_a_record_that_kills_its_only_member_reaches_its_letter() -> None:
    machine, _, member = dead_machine(share_delivery_count_limit="2")
    assert member.settle(0, 2, RELEASE, AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT) == ErrorCode.NONE
    assert member.acquired() == [(0, 0, 2)]
    member.client.session.closed()
    machine.run_for(500)
    assert [story(letter)["delivery.count"] for letter in letters(machine)] == ["2"]
    assert len(machine.broker.share_sessions.share_partitions) == 0, "dropped, once the letter was written"
    again = member_of(machine, member.topic_id, "again")
    assert again.acquired(max_wait_ms=500) == []


def test_after_a_crash_at_any_point_a_record_has_a_letter_or_is_delivered_again() -> None:
    """The machine loses everything that is not synced."""
    outcomes = set()
    for steps in range(40):
        machine, _, member = dead_machine()
        before = len(member.client.replies)
        ask_later(member, 0, 2, REJECT)
        for _ in range(steps):
            machine.broker.end_of_burst()
            machine.scheduler.step()
        is_answered = len(member.client.replies) > before
        machine.crash()
        wait_ready(machine)
        known = {int(story(letter)["offset"]) for letter in letters(machine)}
        found: Any = member_of(machine, member.topic_id).acquired(max_wait_ms=500)
        delivered = {offset for first, last, _ in found for offset in range(first, last + 1)}
        assert known | delivered == {0, 1, 2}, f"lost after {steps} steps"
        assert not is_answered or not delivered, f"answered and delivered again after {steps} steps"
        outcomes.add((bool(known), bool(delivered)))
    assert outcomes >= {(False, True), (True, False)}, "the crashes came before and after"
