"""One handler with all that is its own: the topics it is for, who runs it, its circuit breaker.

Handlers of different topics do not share slots or breakers: one that hangs, or whose dependency is down, leaves the others alone.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.worker.breaker import Breaker
from tidelog.worker.execution import Execution

Handler = Callable[[Message], Any]


class Route:
    __slots__ = ("breaker", "execution", "handler", "is_async", "name")

    def __init__(self, handler: Handler, execution: Execution, breaker: Breaker | None) -> None:
        self.handler = handler
        self.is_async = is_async(handler)
        self.name = getattr(handler, "__qualname__", type(handler).__qualname__)
        self.execution = execution
        self.breaker = breaker


class Handlers:
    """Handlers by topic, as the application registers them; the one under None is for all other topics."""

    def __init__(self) -> None:
        self._by_topic: dict[str | None, Handler] = {}

    def add(self, handler: object, topic: str | None, topics: Iterable[str]) -> None:
        if not callable(handler):
            raise InvalidArgument(f"a handler is a function of a message: {handler!r} cannot be called")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidArgument(f"a handler does its work when it is called: {handler!r} has a yield in it")
        if topic is not None and topic not in topics:
            raise InvalidArgument(f"the worker does not read the topic {topic!r}: it reads {', '.join(topics)}")
        if topic in self._by_topic:
            raise InvalidArgument(
                "the worker has a handler already: give others a topic: @worker.handler(topic=...)"
                if topic is None
                else f"the topic {topic} has a handler already"
            )
        self._by_topic[topic] = handler

    def by_topic(self, topics: Iterable[str]) -> Mapping[str, Handler]:
        """One for each topic. InvalidArgument when one has none."""
        found: dict[str, Handler] = {}
        for topic in topics:
            handler = self._by_topic.get(topic, self._by_topic.get(None))
            if handler is None:
                raise InvalidArgument(f"the topic {topic} has no handler: register one with @worker.handler")
            found[topic] = handler
        return found


def is_async(handler: Handler) -> bool:
    """A coroutine function, or an object whose call is one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(type(handler), "__call__", None))  # noqa: B004 - not whether it can be called
