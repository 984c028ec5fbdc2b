"""Which groups are named, and how often."""

from itertools import pairwise

import pytest

from tidelog.broker.lag_warnings import REPEAT_MS_MAX, REPEAT_MS_MIN, REPORTS_MAX, LagWarnings
from tidelog.groups.lag import GroupPartitionLag

Events = list[tuple[str, dict[str, object]]]


def figures(group: str, partition: int = 0, *, deletion_seconds: float | None = None, lost: int = 0) -> GroupPartitionLag:
    return GroupPartitionLag(
        group, "orders", partition, 40, 40 + lost, 100, 60, 12.5, 5.0, 2.0, 20.0, deletion_seconds, lost, False, True
    )  # fmt: skip


@pytest.fixture
def events() -> Events:
    return []


@pytest.fixture
def warnings(events: Events) -> LagWarnings:
    return LagWarnings(lambda event, facts: events.append((event, facts)))


def test_the_worst_partition_is_named(warnings: LagWarnings, events: Events) -> None:
    losing = [figures("billing", index, deletion_seconds=seconds) for index, seconds in enumerate((300.0, 7.5, 30.0))]
    warnings.walked({"billing": losing}, {}, 0)
    ((event, facts),) = events
    assert event == "group_will_lose_records"
    assert facts == {
        "group": "billing",
        "partitions": 3,
        "worst": "orders-1",
        "committed_offset": 40,
        "log_start_offset": 40,
        "lag_messages": 60,
        "lag_seconds": 12.5,
        "deletion_seconds": 7.5,
    }
    assert warnings.reported == 1


def test_less_and_less_often(warnings: LagWarnings, events: Events) -> None:
    """In a week of danger, looked at every minute."""
    times = []
    for minute in range(7 * 24 * 60):
        before = len(events)
        warnings.walked({"billing": [figures("billing", deletion_seconds=1.0)]}, {}, minute * 60_000)
        if len(events) > before:
            times.append(minute * 60_000)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert gaps[:3] == [REPEAT_MS_MIN, 2 * REPEAT_MS_MIN, 4 * REPEAT_MS_MIN]
    assert gaps[-1] == REPEAT_MS_MAX
    assert len(times) < 16


def test_a_group_that_was_well_again_is_named_at_once(warnings: LagWarnings, events: Events) -> None:
    losing = {"billing": [figures("billing", deletion_seconds=1.0)]}
    warnings.walked(losing, {}, 0)
    warnings.walked({}, {}, 5_000)
    warnings.walked(losing, {}, 10_000)
    assert len(events) == 2


def test_a_loss_is_named_once(warnings: LagWarnings, events: Events) -> None:
    lost = {"billing": [figures("billing", 1, lost=3), figures("billing", 2, lost=9)]}
    for walk in range(100):
        warnings.walked({}, lost, walk * REPEAT_MS_MAX)
    ((event, facts),) = events
    assert (event, facts["worst"], facts["lost_messages"]) == ("group_has_lost_records", "orders-2", 9)
    warnings.walked({}, {}, 0)
    warnings.walked({}, lost, 0)
    assert len(events) == 2


def test_a_walk_says_only_so_much(warnings: LagWarnings, events: Events) -> None:
    names = [f"group-{number}" for number in range(REPORTS_MAX + 5)]
    losing = {name: [figures(name, deletion_seconds=1.0)] for name in names}
    lost = {name: [figures(name, lost=1)] for name in names[:3]}
    warnings.walked(losing, lost, 0)
    assert len(events) == REPORTS_MAX
    warnings.walked(losing, lost, 5_000)
    assert len(events) == len(names) + 3
    assert {facts["group"] for _, facts in events} == set(names)
