"""Clients written as steps: calls wait for the connection, a pause holds answers back, a crash ends it."""

from simulation.client import ClientConnection, Environment
from simulation.group_client import Link
from simulation.history import History
from simulation.network import SimulatedNetwork
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import Scheduler
from simulation.script import Script, Sleep, Steps, call
from tidelog.wire.protocol import ApiKey


class Actor:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        randomness = SimulatedRandomness(1)
        environment = Environment(self.scheduler, SimulatedNetwork(self.scheduler, randomness), History())
        self.connection = ClientConnection("actor", environment, randomness, Link(lambda: None))
        self.heard: list[object] = []
        self.script = Script("actor", self.scheduler, self.connection, self.steps())

    def steps(self) -> Steps:
        for _ in range(3):
            yield Sleep(1_000)
            self.heard.append(self.scheduler.now_us)
        answer = yield call(ApiKey.METADATA, 12, {"topics": [], "allow_auto_topic_creation": False})
        self.heard.append(answer)


def test_one_step_after_the_other_and_calls_wait_for_the_connection() -> None:
    actor = Actor()
    actor.script.start()
    actor.scheduler.run_for(50_000)
    assert actor.heard == [1_000, 2_000, 3_000]
    assert not actor.script.is_over


def test_a_pause_holds_back_what_is_heard() -> None:
    actor = Actor()
    actor.script.start()
    actor.scheduler.run_for(1_500)
    actor.script.pause(5_000)
    actor.scheduler.run_for(4_000)
    assert actor.heard == [1_000]
    actor.scheduler.run_for(10_000)
    assert actor.heard == [1_000, 6_500, 7_500]


def test_after_its_end_nothing_is_heard() -> None:
    actor = Actor()
    actor.script.start()
    actor.script.end()
    actor.scheduler.run_for(10_000)
    assert actor.heard == []
