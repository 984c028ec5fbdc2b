"""A controller looks whether a broker's process is gone: what its listener answers, and for how long."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from simulation.clock import SimulatedClock
from simulation.scheduler import Scheduler
from tidelog.broker.broker import BrokerNode
from tidelog.broker.controller_role import GONE_AFTER_MS, PROBE_INTERVAL_MS, BrokerProbe
from tidelog.broker.timers import Timers
from tidelog.ports.network import CONNECTION_REFUSED, Connection, Network


class Attempt:
    """A connection that is being made."""

    def close(self) -> None:
        """Nobody hears of it."""


class Probing:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        clock = SimulatedClock(self.scheduler)
        self.timers = Timers(clock)
        self.attempts: list[Attempt] = []
        self.verdicts: list[bool] = []
        node = cast(BrokerNode, SimpleNamespace(timers=self.timers, clock=clock))
        self.probe = BrokerProbe(node, cast(Network, self), ("host", 9093), self.verdicts.append)

    def connect(self, *_: Any) -> Connection:
        self.attempts.append(Attempt())
        return cast(Connection, self.attempts[-1])

    @property
    def attempt(self) -> Connection:
        return cast(Connection, self.attempts[-1])

    def wait(self, duration_ms: int) -> None:
        for _ in range(duration_ms + 1):
            self.timers.run_due()
            self.scheduler.run_for(1_000)

    def refuse(self, duration_ms: int) -> None:
        """Refuse every attempt for some time."""
        for _ in range(duration_ms // PROBE_INTERVAL_MS + 1):
            self.probe.closed(self.attempt, CONNECTION_REFUSED)
            self.wait(PROBE_INTERVAL_MS)


@pytest.fixture
def probing() -> Probing:
    probing = Probing()
    probing.wait(0)
    return probing


def test_a_listener_that_refuses_for_long_enough_has_no_process(probing: Probing) -> None:
    probing.refuse(GONE_AFTER_MS - 2 * PROBE_INTERVAL_MS)
    assert probing.verdicts == []
    probing.refuse(3 * PROBE_INTERVAL_MS)
    assert probing.verdicts == [True]


def test_a_process_that_accepts_lives(probing: Probing) -> None:
    probing.refuse(0)
    probing.probe.opened(probing.attempt)
    probing.wait(PROBE_INTERVAL_MS)
    assert probing.verdicts == [False]


def test_a_machine_that_does_not_answer_proves_nothing(probing: Probing) -> None:
    probing.probe.closed(probing.attempt, "timed out")
    assert probing.verdicts == [False]


def test_a_process_that_is_dying_may_still_accept(probing: Probing) -> None:
    """Its listener is closed after the connection of its heartbeats."""
    probing.probe.opened(probing.attempt)
    probing.probe.closed(probing.attempt, "reset")
    probing.wait(1)
    assert len(probing.attempts) == 2
    probing.refuse(GONE_AFTER_MS)
    assert probing.verdicts == [True]
