"""One round of handling: tries in place, how failures are described, what cancelling means."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worker.fakes import work_item
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.ports.randomness import RealRandomness
from tidelog.worker import Worker
from tidelog.worker.deduplicate import default_message_id
from tidelog.worker.dispatch import Lane
from tidelog.worker.handler import AttemptOutcome, AttemptRules, HandlerFailure, make_async_attempt, make_attempt


def rules(**given: Any) -> AttemptRules:
    options: dict[str, Any] = {
        "in_place_retries": 0,
        "is_retriable": lambda error: not isinstance(error, ValueError),
        "deduplicator": None,
        "message_id": default_message_id,
        "randomness": RealRandomness(),
        "stopping": threading.Event(),
    }
    return AttemptRules(**{**options, **given})


def attempt(handler: Any, given: AttemptRules, is_async: bool) -> AttemptOutcome:
    if not is_async:
        return make_attempt(handler, given)(work_item(Lane()))

    async def handle(message: Message) -> None:
        handler(message)

    async def run() -> AttemptOutcome:
        return await make_async_attempt(handle, given)(work_item(Lane()))

    return asyncio.run(run())


@pytest.mark.parametrize("is_async", [False, True])
def test_hiccups_are_tried_in_place_and_counted(is_async: bool) -> None:
    tries: list[int] = []

    def handler(_: Message) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise OSError("hiccup")

    failed = attempt(handler, rules(in_place_retries=2), is_async)
    assert isinstance(failed, HandlerFailure)
    assert (failed.tries, failed.is_retriable, len(tries)) == (3, True, 3)
    assert attempt(handler, rules(in_place_retries=2), is_async) is None


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_not_retriable_is_not_tried_again(is_async: bool) -> None:
    def handler(_: Message) -> None:
        raise ValueError("poison")

    failed = attempt(handler, rules(in_place_retries=5), is_async)
    assert isinstance(failed, HandlerFailure)
    assert (failed.tries, failed.is_retriable) == (1, False)
    assert failed.story.exception_class == "ValueError"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_that_stops_does_not_wait_for_a_try_in_place(is_async: bool) -> None:
    given = rules(in_place_retries=5)
    given.stopping.set()

    def handler(_: Message) -> None:
        raise OSError("hiccup")

    failed = attempt(handler, given, is_async)
    assert isinstance(failed, HandlerFailure)
    assert failed.tries == 1


def test_a_function_for_what_is_retriable_that_fails_itself_is_a_retry() -> None:
    def broken(_: BaseException) -> bool:
        raise KeyError("broken")

    def handler(_: Message) -> None:
        raise OSError("first")

    failed = attempt(handler, rules(is_retriable=broken), False)
    assert isinstance(failed, HandlerFailure)
    assert (failed.story.exception_class, failed.is_retriable) == ("KeyError", True)
    assert "first" in failed.story.traceback


def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def handle(_: Message) -> None:
        raise asyncio.CancelledError

    async def run() -> AttemptOutcome:
        return await make_async_attempt(handle, rules())(work_item(Lane()))

    failed = asyncio.run(run())
    assert isinstance(failed, HandlerFailure)
    assert "cancelled" in failed.story.exception_message


def test_a_handler_whose_call_runs_nothing_is_not_taken_for_handled() -> None:
    async def work(_: Message) -> None:
        raise AssertionError("nobody awaits it")

    def steps(_: Message) -> Iterator[None]:
        yield None

    for handler in (lambda message: work(message), steps):
        with pytest.raises(InvalidArgument, match="none of its code has run"):
            make_attempt(handler, rules())(work_item(Lane()))
    with pytest.raises(InvalidArgument, match="yield"):
        Worker("127.0.0.1:9092", group="email", topics=["orders"]).handler(steps)
