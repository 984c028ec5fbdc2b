"""The figures of share groups: backlog and its age, acquired, delayed, redelivered, expiries, releases, dead letters."""

import pytest

from tests.broker.handlers.share_client import GROUP, ShareMember, share_machine
from tests.broker.handlers.test_queue_topics import queue_machine, send
from tests.broker.handlers.test_share_dead_letters import dead_machine
from tests.broker.handlers.test_share_groups import member_of, wait_ready
from tests.broker.harness import Machine
from tests.broker.test_lag_monitor import HOUR_MS, SEGMENT
from tests.broker.test_metric_sources import Shown
from tests.log.harness import batch
from tidelog.queues.acknowledgements import AcknowledgeType
from tidelog.wire.protocol import ApiKey

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
QUEUE_LABELS = (GROUP, "orders")


def shown_after_a_walk(machine: Machine) -> Shown:
    """A whole walk of the lag monitor from now on."""
    lag = machine.broker.lag
    wanted = lag.walks + 2
    machine.run_until(lambda: lag.walks >= wanted)
    return Shown(machine)


def test_figures_follow_what_members_do() -> None:
    machine, _, member = dead_machine(share_record_lock_duration_ms="2000")
    assert isinstance(member, ShareMember)
    shown = Shown(machine)
    assert shown.value("tidelog_share_sessions") == 1
    assert shown.value("tidelog_share_acquired", GROUP) == 3
    member.settle(0, 1, AcknowledgeType.REJECT, AcknowledgeType.RELEASE)
    shown = Shown(machine)
    assert shown.value("tidelog_share_releases_total") == shown.value("tidelog_share_dead_letters_total") == 1
    assert (shown.value("tidelog_share_acquired", GROUP), shown.value("tidelog_share_redelivered", GROUP)) == (1, 1)
    machine.run_for(3_000)
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_share_lock_expiries_total") == 1
    assert (shown.value("tidelog_share_acquired", GROUP), shown.value("tidelog_share_redelivered", GROUP)) == (0, 2)
    assert shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 2
    assert shown.value("tidelog_share_state_bytes") > 0


def test_the_backlog_and_its_age_are_shown_when_all_members_are_gone_also_after_a_crash() -> None:
    machine, client, topic_id = share_machine()
    client.append(records=batch(timestamps=[machine.clock.now_ms() - 60_000] * 5))
    client.append(records=batch(timestamps=[machine.clock.now_ms()] * 2))
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 6, 1)]
    member.settle(0, 3, ACCEPT)
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 3
    assert 60 <= shown.value("tidelog_share_oldest_seconds", *QUEUE_LABELS) < 90
    member.settle(4, 4, ACCEPT)
    member.settle(6, 6, ACCEPT)
    member.client.session.closed()
    shown = shown_after_a_walk(machine)
    assert shown.labels("tidelog_share_acquired") == [], "nobody fetches"
    assert shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 1
    assert shown.value("tidelog_share_oldest_seconds", *QUEUE_LABELS) < 60
    machine.crash()
    wait_ready(machine)
    machine.run_for(60_000)
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 1
    assert 60 <= shown.value("tidelog_share_oldest_seconds", *QUEUE_LABELS) < 120
    machine.client().call(ApiKey.DELETE_TOPICS, 5, topic_names=["orders"])
    assert shown_after_a_walk(machine).labels("tidelog_share_backlog") == []


def test_a_group_that_goes_while_its_page_is_collected_in_slices_does_no_harm() -> None:
    machine, client, topic_id = share_machine()
    client.append()
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 0, 1)]
    groups = machine.broker.share_sessions.share_partitions.by_group()
    assert [group_id for group_id, _ in [next(groups)]] == [GROUP]
    member.client.session.closed()
    machine.run_for(100)
    assert list(groups) == []


def test_what_is_not_due_does_not_count_as_old_while_members_fetch() -> None:
    machine, client, member = queue_machine()
    send(machine, client, (600_000, 0))
    assert member.acquired() == []
    machine.run_for(60_000)
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_share_delayed", GROUP) == shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 1
    assert shown.value("tidelog_share_oldest_seconds", *QUEUE_LABELS) == 0
    send(machine, client, (0, 0))
    machine.run_for(60_000)
    assert shown_after_a_walk(machine).value("tidelog_share_oldest_seconds", *QUEUE_LABELS) == pytest.approx(65, abs=6)


def test_what_retention_deletes_before_it_is_settled_is_shown_and_reported() -> None:
    hour = {"retention_ms": str(2 * HOUR_MS), "segment_bytes": SEGMENT}
    machine, client, topic_id = share_machine(topic_configs=hour)
    client.append(records=batch(timestamps=[machine.clock.now_ms() - HOUR_MS - HOUR_MS // 2] * 4))
    member = member_of(machine, topic_id)
    assert member.acquired() == [(0, 3, 1)]
    member.settle(1, 2, ACCEPT)
    member.client.session.closed()
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_group_deletion_seconds", GROUP) < HOUR_MS / 1000
    assert ("group_will_lose_records", GROUP) in [(event, facts.get("group")) for event, facts in machine.events]
    client.append(count=3)
    client.call(ApiKey.DELETE_RECORDS, 2, topics=[{"name": "orders", "partitions": [{"partition_index": 0, "offset": 4}]}])
    shown = shown_after_a_walk(machine)
    assert shown.value("tidelog_group_lost_messages", GROUP) == 2, "two of the four were settled"
    assert shown.value("tidelog_share_backlog", *QUEUE_LABELS) == 3
