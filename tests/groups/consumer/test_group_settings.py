"""Settings that one group has of its own: they count at once, and the others' stay the broker's."""

import pytest

from tests.groups.consumer.bench import GROUP, SESSION_MS, ConsumerBench
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.records import ConfigRecord

HEARTBEAT = "consumer.heartbeat.interval.ms"
SESSION = "consumer.session.timeout.ms"


def set_for_group(bench: ConsumerBench, name: str, value: str | None, group: str = GROUP) -> None:
    bench.image.replay([ConfigRecord(ResourceType.GROUP, group, name, value)], bench.image.last_offset + 1)


def test_members_are_told_how_often_their_group_wants_heartbeats(bench: ConsumerBench) -> None:
    member = bench.join("a")
    assert member.heartbeat().heartbeat_interval_ms == 5_000
    set_for_group(bench, HEARTBEAT, "7000")
    assert member.heartbeat().heartbeat_interval_ms == 7_000
    set_for_group(bench, HEARTBEAT, None)
    assert member.heartbeat().heartbeat_interval_ms == 5_000


@pytest.mark.parametrize(
    ("group", "name", "value"), [("another", HEARTBEAT, "7000"), (GROUP, HEARTBEAT, "soon"), (GROUP, "x", "1")]
)
def test_what_is_not_for_the_group_or_cannot_be_read_does_not_count(
    bench: ConsumerBench, group: str, name: str, value: str
) -> None:
    set_for_group(bench, name, value, group)
    assert bench.join("a").heartbeat().heartbeat_interval_ms == 5_000


def test_sessions_may_be_longer(bench: ConsumerBench) -> None:
    set_for_group(bench, SESSION, str(2 * SESSION_MS))
    bench.join("a")
    bench.run_for(2 * SESSION_MS - 1000)
    assert list(bench.group.members) == ["a"]
    bench.run_for(2000)
    assert bench.group.members == {}


def test_sessions_that_become_shorter_end_earlier_from_the_next_heartbeat_on(bench: ConsumerBench) -> None:
    member = bench.join("a")
    set_for_group(bench, SESSION, "10000")
    bench.run_for(11_000)
    assert list(bench.group.members) == ["a"], "this session began with the longer time"
    member.heartbeat()
    bench.run_for(11_000)
    assert bench.group.members == {}
