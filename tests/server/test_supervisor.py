"""The decisions about the processes of ``tidelog up``, without a process."""

import pytest

from tidelog.server.supervisor import (
    HEALTHY_MS,
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    STOP_MS_MAX,
    Announce,
    KillBroker,
    Order,
    StartBroker,
    StopBroker,
    Supervisor,
)


def started(count: int = 3) -> Supervisor:
    """A supervisor whose brokers all serve."""
    supervisor = Supervisor(range(1, count + 1), 0)
    for node_id in range(1, count + 1):
        supervisor.ready(node_id, 100)
    supervisor.take_orders()
    return supervisor


def deeds(orders: list[Order]) -> list[Order]:
    return [order for order in orders if not isinstance(order, Announce)]


def events(orders: list[Order]) -> list[tuple[str, int | None]]:
    return [(order.event, order.node_id) for order in orders if isinstance(order, Announce)]


def test_all_are_started_at_once_and_the_cluster_is_ready_with_the_last() -> None:
    supervisor = Supervisor([1, 2, 3], 0)
    assert supervisor.take_orders() == [StartBroker(1), StartBroker(2), StartBroker(3)]
    supervisor.ready(2, 800)
    supervisor.ready(1, 900)
    assert supervisor.take_orders() == [Announce("ready", 2, "0.8 s"), Announce("ready", 1, "0.9 s")]
    supervisor.ready(3, 1_000)
    supervisor.ready(3, 1_001)
    assert supervisor.take_orders() == [Announce("ready", 3, "1.0 s"), Announce("cluster_ready")]


def test_a_dead_broker_is_started_again_after_a_pause_that_doubles() -> None:
    supervisor = started(1)
    now_ms, pauses = 1_000, []
    for _ in range(9):
        supervisor.ended(1, -9, now_ms)
        deadline_ms = supervisor.next_deadline_ms
        assert deadline_ms is not None
        supervisor.tick(deadline_ms - 1)
        assert deeds(supervisor.take_orders()) == []
        supervisor.tick(deadline_ms)
        assert supervisor.take_orders() == [StartBroker(1)]
        pauses.append(deadline_ms - now_ms)
        now_ms = deadline_ms + 10
        supervisor.ready(1, now_ms)
        assert events(supervisor.take_orders()) == [("ready", 1)]
    assert pauses[:3] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN]
    assert pauses[-1] == PAUSE_MS_MAX


def test_a_broker_that_has_lived_for_a_while_is_started_again_soon() -> None:
    supervisor = started(1)
    now_ms = 100
    for _ in range(5):
        supervisor.ended(1, -9, now_ms)
        now_ms = supervisor.next_deadline_ms or 0
        supervisor.tick(now_ms)
        supervisor.ready(1, now_ms)
    supervisor.tick(now_ms + HEALTHY_MS)
    supervisor.ended(1, 1, now_ms + HEALTHY_MS)
    assert supervisor.next_deadline_ms == now_ms + HEALTHY_MS + PAUSE_MS_MIN


def test_one_that_gives_up_before_it_ever_served_ends_everything() -> None:
    supervisor = Supervisor([1, 2, 3], 0)
    supervisor.ready(1, 500)
    supervisor.take_orders()
    supervisor.ended(2, 1, 600)
    orders = supervisor.take_orders()
    assert events(orders) == [("failed", 2)]
    assert deeds(orders) == [StopBroker(3)]
    supervisor.ended(3, 0, 700)
    assert deeds(supervisor.take_orders()) == [StopBroker(1)]
    supervisor.ended(1, 0, 800)
    assert supervisor.is_over
    assert supervisor.exit_code == 1


def test_one_that_is_killed_before_it_served_is_started_again() -> None:
    supervisor = Supervisor([1], 0)
    supervisor.take_orders()
    supervisor.ended(1, -9, 100)
    supervisor.tick(100 + PAUSE_MS_MIN)
    assert deeds(supervisor.take_orders()) == [StartBroker(1)]


def test_they_are_stopped_one_after_the_other_the_last_one_first() -> None:
    supervisor = started()
    supervisor.stop(1_000)
    for node_id in (3, 2, 1):
        assert deeds(supervisor.take_orders()) == [StopBroker(node_id)]
        assert not supervisor.is_over
        supervisor.ended(node_id, 0, 2_000)
    assert supervisor.is_over
    assert supervisor.exit_code == 0


def test_one_that_does_not_stop_in_time_is_killed() -> None:
    supervisor = started(2)
    supervisor.stop(1_000)
    supervisor.take_orders()
    supervisor.tick(1_000 + STOP_MS_MAX)
    assert deeds(supervisor.take_orders()) == [KillBroker(2)]
    supervisor.ended(2, -9, 70_000)
    assert deeds(supervisor.take_orders()) == [StopBroker(1)]
    supervisor.ended(1, 0, 70_001)
    assert supervisor.is_over
    assert supervisor.exit_code == 1


def test_the_second_time_all_are_killed_at_once_and_the_third_changes_nothing() -> None:
    supervisor = started()
    supervisor.stop(1_000)
    supervisor.take_orders()
    supervisor.stop(1_010)
    assert supervisor.take_orders() == []
    supervisor.stop(2_100)
    assert deeds(supervisor.take_orders()) == [KillBroker(1), KillBroker(2), KillBroker(3)]
    supervisor.stop(3_200)
    for node_id in (1, 2, 3):
        supervisor.ended(node_id, -9, 3_300)
    assert deeds(supervisor.take_orders()) == []
    assert supervisor.is_over
    assert supervisor.exit_code == 1


@pytest.mark.parametrize("status", [0, 1, -9])
def test_a_broker_that_waits_to_be_started_again_is_not_when_all_stop(status: int) -> None:
    supervisor = started(2)
    supervisor.ended(2, status, 1_000)
    supervisor.stop(1_100)
    assert deeds(supervisor.take_orders()) == [StopBroker(1)]
    supervisor.tick(1_000_000)
    supervisor.ended(1, 0, 1_000_001)
    assert StartBroker(2) not in supervisor.take_orders()
    assert supervisor.is_over
