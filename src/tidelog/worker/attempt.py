"""One round of handling one message: trace context, deduplication, the handler, tries in place.

A round ends in None (handled), ``DUPLICATE`` (handled before) or a ``Failure`` with how often the handler was tried. In-place
tries are for short hiccups: the thread, or the asyncio task, waits a moment and tries again. The wait ends early when the worker
stops; the failure then counts as it is.

The synchronous and the asynchronous version do the same; what is slow in the second (a deduplicator's file or network) runs in
a thread, so that the loop goes on.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.client.tracing import extract, with_traceparent
from tidelog.deadletters.letter import ExceptionStory, describe_exception
from tidelog.ports.randomness import Randomness
from tidelog.worker.deduplicate import Claim, Deduplicator, MessageId
from tidelog.worker.failures import InProgress
from tidelog.worker.job import Job

IN_PLACE_SECONDS = 0.05
IN_PLACE_SECONDS_MAX = 1.0

DUPLICATE: Final = "duplicate"

# What calling a function with await or yield in it returns.
_NOT_RUN = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))

Handler = Callable[[Message], Any]
AsyncHandler = Callable[[Message], Awaitable[Any]]


class Failure:
    __slots__ = ("error", "is_retriable", "job", "story", "tries")

    def __init__(self, job: Job, error: Exception, tries: int, is_retriable: bool) -> None:
        self.job = job
        self.error = error
        self.tries = tries
        self.is_retriable = is_retriable
        self.story: ExceptionStory = describe_exception(error)


Outcome = Failure | str | None


class Rules:
    """What attempts of one handler have in common."""

    __slots__ = ("deduplicator", "in_place_retries", "is_retriable", "message_id", "randomness", "stopping")

    def __init__(
        self,
        *,
        in_place_retries: int,
        is_retriable: Callable[[BaseException], bool],
        deduplicator: Deduplicator | None,
        message_id: MessageId,
        randomness: Randomness,
        stopping: threading.Event,
    ) -> None:
        self.in_place_retries = in_place_retries
        self.is_retriable = is_retriable
        self.deduplicator = deduplicator
        self.message_id = message_id
        self.randomness = randomness
        self.stopping = stopping

    def failure(self, job: Job, error: Exception, tries: int) -> Failure:
        try:
            is_retriable = self.is_retriable(error)
        except Exception as wrong:  # the application's own function failed: keep both, and try again later
            wrong.__context__ = error
            return Failure(job, wrong, tries, True)
        return Failure(job, error, tries, is_retriable)

    def pause_seconds(self, tries: int) -> float:
        """Before the try after ``tries``."""
        longest = min(IN_PLACE_SECONDS_MAX, IN_PLACE_SECONDS * 2.0 ** min(tries - 1, 10))
        return longest * (0.5 + self.randomness.fraction() / 2)

    def may_try_in_place(self, failure: Failure) -> bool:
        return failure.is_retriable and failure.tries <= self.in_place_retries and not self.stopping.is_set()


def make_attempt(handler: Handler, rules: Rules) -> Callable[[Job], Outcome]:
    """The function that does one round, as plain as the options allow."""

    def call(job: Job, message: Message) -> Failure | None:
        tries = 1
        while True:
            try:
                result = handler(message)
            except Exception as error:
                failure = rules.failure(job, error, tries)
            else:
                if type(result) in _NOT_RUN:
                    # Counted as handled it would be lost: nothing of it has run.
                    raise _not_run(handler, result)
                return None
            if not rules.may_try_in_place(failure) or rules.stopping.wait(rules.pause_seconds(tries)):
                return failure
            tries += 1

    def traced(job: Job) -> Failure | None:
        message = job.message()
        # Most messages carry no headers at all.
        headers = message[2].headers()
        traceparent = extract(headers) if headers else None
        if traceparent is None:
            return call(job, message)
        with with_traceparent(traceparent):
            return call(job, message)

    deduplicator = rules.deduplicator
    if deduplicator is None:
        return traced

    def deduplicated(job: Job) -> Outcome:
        try:
            identity = rules.message_id(job.message())
            claim = deduplicator.claim(identity)
        except Exception as error:
            return rules.failure(job, error, 1)
        if claim is not Claim.OURS:
            return DUPLICATE if claim is Claim.DONE else _in_progress(job, identity)
        failure = traced(job)
        try:
            if failure is None:
                deduplicator.finish(identity)
            else:
                deduplicator.release(identity)
        except Exception as error:
            return rules.failure(job, error, 1) if failure is None else failure
        return failure

    return deduplicated


def make_async_attempt(handler: AsyncHandler, rules: Rules) -> Callable[[Job], Awaitable[Outcome]]:
    """As ``make_attempt``, for a coroutine function."""

    async def call(job: Job, message: Message) -> Failure | None:
        tries = 1
        while True:
            try:
                await handler(message)
                return None
            except asyncio.CancelledError:
                # Somebody cancelled within the handler, or the worker is over and cancels all that still runs.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                failure = rules.failure(job, RuntimeError("the handler was cancelled from within"), tries)
            except Exception as error:
                failure = rules.failure(job, error, tries)
            if not rules.may_try_in_place(failure):
                return failure
            await asyncio.sleep(rules.pause_seconds(tries))
            tries += 1

    async def traced(job: Job) -> Failure | None:
        message = job.message()
        headers = message[2].headers()
        traceparent = extract(headers) if headers else None
        if traceparent is None:
            return await call(job, message)
        with with_traceparent(traceparent):
            return await call(job, message)

    deduplicator = rules.deduplicator
    if deduplicator is None:
        return traced

    async def deduplicated(job: Job) -> Outcome:
        try:
            identity = rules.message_id(job.message())
            claim = await asyncio.to_thread(deduplicator.claim, identity)
        except Exception as error:
            return rules.failure(job, error, 1)
        if claim is not Claim.OURS:
            return DUPLICATE if claim is Claim.DONE else _in_progress(job, identity)
        failure = await traced(job)
        try:
            await asyncio.to_thread(deduplicator.finish if failure is None else deduplicator.release, identity)
        except Exception as error:
            return rules.failure(job, error, 1) if failure is None else failure
        return failure

    return deduplicated


def _not_run(handler: Handler, result: Any) -> InvalidArgument:
    if not isinstance(result, AsyncGeneratorType):
        result.close()
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return InvalidArgument(
        f"the handler {name} returned a {type(result).__name__}, so nothing of it was run: declare it with async def, or let it "
        "do its work before it returns; no message was passed over"
    )


def _in_progress(job: Job, identity: str) -> Failure:
    return Failure(job, InProgress(f"{identity} is being handled elsewhere, or its handler died"), 0, True)
