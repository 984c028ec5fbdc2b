"""One page at a time, made in slices, shared by all who ask."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from tidelog.metrics.exposition import CONTENT_TYPE
from tidelog.metrics.registry import SLICE_SAMPLES, Description, Kind, Registry, Sample
from tidelog.ports.executor import ChildTask, Completion, OnDone
from tidelog.server.http import HttpResponse
from tidelog.server.metrics_page import FRESH_SECONDS, MetricsPage


class HandLoop:
    """What a page asks of a loop; time moves when told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.later.append(callback)


class HandExecutor:
    """Work is done when told."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], Any], OnDone]] = []

    def submit(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self.work.append((work, on_done))

    def submit_child(self, task: ChildTask, on_done: OnDone) -> None:
        raise AssertionError("no page needs a process")

    def run(self) -> None:
        work, on_done = self.work.pop(0)
        on_done(Completion(work(), None))


class World:
    def __init__(self, samples: int = 1) -> None:
        self.loop, self.executor = HandLoop(), HandExecutor()
        self.value = 1
        description = Description("size", Kind.GAUGE, "Size.", ("topic",), samples)
        registry, off_loop = Registry(), Registry()

        def collect() -> list[Sample]:
            if self.value < 0:
                raise RuntimeError("broken")
            return [(description, (str(number),), self.value) for number in range(samples)]

        registry.add([description], collect)
        off_loop.add_value(Kind.GAUGE, "memory", "Memory.", lambda: 7)
        self.page = MetricsPage(self.loop, registry, off_loop, self.executor)  # type: ignore[arg-type]  # of a loop only this is asked
        self.answers: list[HttpResponse] = []

    def ask(self) -> None:
        self.page.serve(self.answers.append)


def test_a_page_has_what_is_counted_on_the_loop_and_beside_it() -> None:
    world = World()
    world.ask()
    assert world.answers == []
    world.executor.run()
    (answer,) = world.answers
    assert (answer.status, answer.content_type) == (HTTPStatus.OK, CONTENT_TYPE)
    assert b'size{topic="0"} 1\n' in answer.body
    assert b"memory 7\n" in answer.body


def test_the_loop_has_its_turn_between_slices() -> None:
    world = World(2 * SLICE_SAMPLES + 1)
    world.ask()
    for _ in range(2):
        assert world.executor.work == []
        world.loop.later.pop()()
    world.executor.run()
    assert world.answers[0].body.count(b"size{") == 2 * SLICE_SAMPLES + 1


def test_who_asks_meanwhile_gets_the_same_page() -> None:
    world = World()
    world.ask()
    world.ask()
    world.executor.run()
    world.ask()
    assert len(world.answers) == 3
    assert world.page.made == 1
    assert world.executor.work == []


def test_after_a_while_there_is_a_new_one() -> None:
    world = World()
    world.ask()
    world.executor.run()
    world.loop.now += FRESH_SECONDS
    world.value = 2
    world.ask()
    world.executor.run()
    assert b'size{topic="0"} 2\n' in world.answers[1].body


def test_a_source_that_fails_is_an_answer_and_not_the_end() -> None:
    world = World()
    world.value = -1
    world.ask()
    assert [answer.status for answer in world.answers] == [HTTPStatus.INTERNAL_SERVER_ERROR]
    world.value = 1
    world.ask()
    world.executor.run()
    assert world.answers[1].status is HTTPStatus.OK


def test_rendering_that_fails_is_an_answer_too() -> None:
    world = World()
    world.ask()
    _, on_done = world.executor.work.pop()
    on_done(Completion(None, RuntimeError("broken")))
    assert [answer.status for answer in world.answers] == [HTTPStatus.INTERNAL_SERVER_ERROR]
    world.ask()
    assert len(world.executor.work) == 1
