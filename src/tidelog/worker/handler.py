"""Handlers: how applications register them, and one round of handling one message.

A round extracts the trace context, asks the deduplicator, calls the handler, and repeats the call in place. It ends in None
(handled), ``DUPLICATE`` (handled before) or a ``HandlerFailure`` with the number of tries. In-place tries are for short hiccups:
the thread, or the asyncio task, waits a moment and tries again. The wait ends early when the worker stops; the failure then
counts.

The synchronous and the asynchronous version do the same. In the latter, calls that may block (a deduplicator's file or network)
run in a thread, so that the loop continues.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.client.tracing import MessagingSpans, ProcessedPlace, extract, with_traceparent
from tidelog.deadletters.letter import ExceptionStory, describe_exception
from tidelog.ports.randomness import Randomness
from tidelog.worker.deduplicate import Claim, Deduplicator, MessageId
from tidelog.worker.failures import InProgress, Retry
from tidelog.worker.partitions import WorkItem

IN_PLACE_SECONDS = 0.05
IN_PLACE_SECONDS_MAX = 1.0

DUPLICATE: Final = "duplicate"

# The types that a call of a coroutine or generator function returns.
_NOT_RUN = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))

Handler = Callable[[Message], Any]
AsyncHandler = Callable[[Message], Awaitable[Any]]


class HandlerRegistry:
    """Handlers by topic, as the application registers them. The handler under None is for all topics without their own."""

    def __init__(self) -> None:
        self._by_topic: dict[str | None, Handler] = {}

    def add(self, handler: object, topic: str | None, topics: Iterable[str]) -> None:
        if not callable(handler):
            raise InvalidArgument(f"a handler is a function that takes a message: {handler!r} cannot be called")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidArgument(
                f"a handler does its work when it is called, but {handler!r} is a generator function: remove its yield"
            )
        if topic is not None and topic not in topics:
            raise InvalidArgument(f"the worker does not read the topic {topic!r}: it reads {', '.join(topics)}")
        if topic in self._by_topic:
            raise InvalidArgument(
                "the worker already has a handler: register others for one topic each, with @worker.handler(topic=...)"
                if topic is None
                else f"the topic {topic} already has a handler"
            )
        self._by_topic[topic] = handler

    def by_topic(self, topics: Iterable[str]) -> Mapping[str, Handler]:
        """The handler of each topic. InvalidArgument if a topic has no handler."""
        found: dict[str, Handler] = {}
        for topic in topics:
            handler = self._by_topic.get(topic, self._by_topic.get(None))
            if handler is None:
                raise InvalidArgument(f"the topic {topic} has no handler: register one with @worker.handler")
            found[topic] = handler
        return found


def is_async(handler: Handler) -> bool:
    """Whether it is a coroutine function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(type(handler), "__call__", None))  # noqa: B004 - the question is not whether it is callable


class HandlerFailure:
    """A failed attempt. ``tries`` counts the in-place tries of the round."""

    __slots__ = ("error", "is_retriable", "item", "story", "tries")

    def __init__(self, item: WorkItem, error: Exception, tries: int, is_retriable: bool) -> None:
        self.item = item
        self.error = error
        self.tries = tries
        self.is_retriable = is_retriable
        self.story: ExceptionStory = describe_exception(error)


AttemptOutcome = HandlerFailure | str | None
"""None means that the message was handled, ``DUPLICATE`` that it was handled before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRules:
    """The settings that all attempts of one handler share."""

    in_place_retries: int
    is_retriable: Callable[[BaseException], bool]
    deduplicator: Deduplicator | None
    message_id: MessageId
    randomness: Randomness
    stopping: threading.Event
    group: str = ""
    spans: MessagingSpans | None = None
    """Records each round as a span, where the program uses OpenTelemetry."""

    def place_of(self, message: Message) -> ProcessedPlace:
        return ProcessedPlace(message.topic, message.partition, message.offset, self.group, message.attempt)

    def failure(self, item: WorkItem, error: Exception, tries: int) -> HandlerFailure:
        try:
            is_retriable = self.is_retriable(error)
        except Exception as wrong:  # The application's own function failed, so keep both errors and retry.
            wrong.__context__ = error
            return HandlerFailure(item, wrong, tries, True)
        return HandlerFailure(item, error, tries, is_retriable)

    def pause_seconds(self, tries: int) -> float:
        """How long to wait before the next in-place try."""
        longest = min(IN_PLACE_SECONDS_MAX, IN_PLACE_SECONDS * 2.0 ** min(tries - 1, 10))
        return longest * (0.5 + self.randomness.fraction() / 2)

    def may_try_in_place(self, failure: HandlerFailure) -> bool:
        # A handler that chose to wait would only be asked again at once.
        if isinstance(failure.error, Retry):
            return False
        return failure.is_retriable and failure.tries <= self.in_place_retries and not self.stopping.is_set()


def make_attempt(handler: Handler, rules: AttemptRules) -> Callable[[WorkItem], AttemptOutcome]:
    """The function that does one round, as plain as the rules allow."""

    def call(item: WorkItem, message: Message) -> HandlerFailure | None:
        tries = 1
        while True:
            try:
                result = handler(message)
            except Exception as error:
                failure = rules.failure(item, error, tries)
            else:
                if type(result) in _NOT_RUN:
                    # If it counted as handled the message would be lost, because nothing has run.
                    raise _not_run(handler, result)
                return None
            if not rules.may_try_in_place(failure) or rules.stopping.wait(rules.pause_seconds(tries)):
                return failure
            tries += 1

    def traced(item: WorkItem) -> HandlerFailure | None:
        message = item.handler_message()
        # Most messages have no headers at all.
        headers = message.raw.headers()
        traceparent = extract(headers) if headers else None
        spans = rules.spans
        if spans is not None:
            with spans.processing(rules.place_of(message), traceparent) as span:
                failure = call(item, message)
                if failure is not None:
                    spans.failed(span, failure.error)
                return failure
        if traceparent is None:
            return call(item, message)
        with with_traceparent(traceparent):
            return call(item, message)

    deduplicator = rules.deduplicator
    if deduplicator is None:
        return traced

    def deduplicated(item: WorkItem) -> AttemptOutcome:
        try:
            identity = rules.message_id(item.handler_message())
            claim = deduplicator.claim(identity)
        except Exception as error:
            return rules.failure(item, error, 1)
        if claim is not Claim.OURS:
            return DUPLICATE if claim is Claim.DONE else _in_progress(item, identity)
        failure = traced(item)
        try:
            if failure is None:
                deduplicator.finish(identity)
            else:
                deduplicator.release(identity)
        except Exception as error:
            return rules.failure(item, error, 1) if failure is None else failure
        return failure

    return deduplicated


def make_async_attempt(handler: AsyncHandler, rules: AttemptRules) -> Callable[[WorkItem], Awaitable[AttemptOutcome]]:
    """``make_attempt`` for a coroutine function."""

    async def call(item: WorkItem, message: Message) -> HandlerFailure | None:
        tries = 1
        while True:
            try:
                await handler(message)
                return None
            except asyncio.CancelledError:
                # Either the handler itself cancelled, or the worker has ended and cancels what still runs.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                failure = rules.failure(item, RuntimeError("the handler was cancelled from within"), tries)
            except Exception as error:
                failure = rules.failure(item, error, tries)
            if not rules.may_try_in_place(failure):
                return failure
            await asyncio.sleep(rules.pause_seconds(tries))
            tries += 1

    async def traced(item: WorkItem) -> HandlerFailure | None:
        message = item.handler_message()
        headers = message.raw.headers()
        traceparent = extract(headers) if headers else None
        spans = rules.spans
        if spans is not None:
            with spans.processing(rules.place_of(message), traceparent) as span:
                failure = await call(item, message)
                if failure is not None:
                    spans.failed(span, failure.error)
                return failure
        if traceparent is None:
            return await call(item, message)
        with with_traceparent(traceparent):
            return await call(item, message)

    deduplicator = rules.deduplicator
    if deduplicator is None:
        return traced

    async def deduplicated(item: WorkItem) -> AttemptOutcome:
        try:
            identity = rules.message_id(item.handler_message())
            claim = await asyncio.to_thread(deduplicator.claim, identity)
        except Exception as error:
            return rules.failure(item, error, 1)
        if claim is not Claim.OURS:
            return DUPLICATE if claim is Claim.DONE else _in_progress(item, identity)
        failure = await traced(item)
        try:
            await asyncio.to_thread(deduplicator.finish if failure is None else deduplicator.release, identity)
        except Exception as error:
            return rules.failure(item, error, 1) if failure is None else failure
        return failure

    return deduplicated


def _not_run(handler: Handler, result: Any) -> InvalidArgument:
    if not isinstance(result, AsyncGeneratorType):
        result.close()
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    return InvalidArgument(
        f"the handler {name} returned a {type(result).__name__}, so none of its code has run: declare it with async def, or let "
        "it do its work before it returns; no message was skipped"
    )


def _in_progress(item: WorkItem, identity: str) -> HandlerFailure:
    return HandlerFailure(item, InProgress(f"{identity} is being handled by another worker, or that worker died"), 0, True)
