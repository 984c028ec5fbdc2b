"""The worker: a handler function, sync or async, and everything around it.

    worker = Worker("127.0.0.1:9092", group="email", topics=["orders"], retries=5, backoff=Backoff(base=1.0, cap=60.0))

    @worker.handler
    def send_email(message): ...

    worker.run()

This module is what applications see. What one run does is in ``session``.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, TypeVar, overload

from tidelog.client.errors import InvalidArgument
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker.attempt import Rules, make_async_attempt, make_attempt
from tidelog.worker.backoff import Backoff
from tidelog.worker.breaker import Breaker, CircuitBreaker
from tidelog.worker.deduplicate import Deduplicator, MessageId, default_message_id, remember_seconds_of
from tidelog.worker.dispatch_lanes import LaneDispatch
from tidelog.worker.dispatch_none import UnorderedDispatch
from tidelog.worker.execution import Execution, Report
from tidelog.worker.execution_asyncio import AsyncioSlots, LoopThread
from tidelog.worker.execution_threads import ThreadSlots
from tidelog.worker.failures import FailurePolicy, Retriable
from tidelog.worker.liveness import Liveness
from tidelog.worker.metrics import Counts, WorkerMetrics, joined, quantile_seconds
from tidelog.worker.options import OFFSET_METADATA_BYTES_MAX, Order, checked_options
from tidelog.worker.route import Handler, Handlers, Route
from tidelog.worker.session import Session
from tidelog.worker.signals import stopping_on_signals

AnyHandler = TypeVar("AnyHandler", bound=Handler)

NANOSECONDS_PER_SECOND = 1_000_000_000


class Worker:
    """Reads topics as a member of a group and calls a handler for every message.

    **What it promises.** Every message is handled at least once, or is a dead letter with its story; none is passed over or
    dropped. An offset is committed when everything below it is finished, and what is finished above it is remembered in the
    commit, so that a restart repeats little. A handler that raises is tried again: ``in_place_retries`` times at once, then
    ``retries`` times through retry topics (``<topic>.<group>.retry.<n>``) after the ``backoff``, then the message goes to
    ``<topic>.<group>.dlq``. What cannot be decoded, and what ``retriable`` (exception classes, or a function) says no to, goes
    there at once. A letter is acknowledged before the offset of its message is committed; with ``exactly_once`` both are in one
    transaction, so that there is exactly one letter; the handler itself may still run more than once.

    **Order.** ``"partition"``: one message of a partition at a time, by offset. ``"key"``: one message of a key at a time, by
    offset, keys side by side; later messages of a key that failed wait behind it. ``"none"``: as they come. With
    ``"partition"`` and ``"none"`` a message that failed is handled later than those behind it. Up to ``concurrency`` messages
    are handled at once by each handler: sync ones in threads, async ones as tasks of one asyncio loop. Members of a group must
    have the same ``order``.

    ``deduplicate`` recognises messages that were handled before, by ``message_id``; its promise is in
    ``tidelog.worker.deduplicate``. ``circuit_breaker`` (None: none) pauses and probes when failures say that a dependency is
    down. ``drain_timeout``: how long a stop, or a rebalance, waits for what is under way. ``prefetch_messages`` and
    ``prefetch_bytes`` bound what is read ahead, after a restart as well. ``instance_id``: a name of this instance that stays
    over restarts, so that it has its partitions back at once. ``liveness_file`` is touched every second while the worker polls
    and no handler runs for longer than ``liveness_timeout``. ``config``: librdkafka's settings. Times in seconds.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        group: str,
        topics: str | Sequence[str],
        retries: int = 5,
        backoff: Backoff | None = None,
        in_place_retries: int = 0,
        order: Order = "partition",
        concurrency: int = 16,
        retriable: Retriable | None = None,
        exactly_once: bool = False,
        deduplicate: Deduplicator | None = None,
        message_id: MessageId = default_message_id,
        circuit_breaker: CircuitBreaker | None = CircuitBreaker(),  # noqa: B008 - immutable
        drain_timeout: float = 30.0,
        application_version: str | None = None,
        instance_id: str | None = None,
        commit_interval: float = 1.0,
        prefetch_messages: int = 20_000,
        prefetch_bytes: int = 64 << 20,
        offset_metadata_bytes: int = OFFSET_METADATA_BYTES_MAX,
        liveness_file: str | PathLike[str] | None = None,
        liveness_timeout: float = 300.0,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """InvalidArgument says which argument makes no sense. Nothing is connected yet."""
        self._options = checked_options(
            bootstrap,
            topics,
            group=group,
            retries=retries,
            backoff=Backoff() if backoff is None else backoff,
            in_place_retries=in_place_retries,
            order=order,
            concurrency=concurrency,
            retriable=retriable,
            exactly_once=exactly_once,
            deduplicate=deduplicate,
            message_id=message_id,
            circuit_breaker=circuit_breaker,
            drain_timeout=drain_timeout,
            application_version=application_version,
            instance_id=instance_id,
            commit_interval=commit_interval,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            offset_metadata_bytes=offset_metadata_bytes,
            liveness_file=liveness_file,
            liveness_timeout=liveness_timeout,
            config=config,
        )
        self._handlers = Handlers()
        self._clock = RealClock()
        self._randomness = RealRandomness()
        self._liveness = Liveness(liveness_timeout, liveness_file)
        self._counts = Counts()
        self._routes: list[Route] = []
        self._session: Session | None = None
        self._stopping = threading.Event()
        self._is_stop_wanted = False
        self._is_hurried = False
        self._lock = threading.Lock()

    # -- handlers ------------------------------------------------------------------------------------------------------------

    @overload
    def handler(self, function: AnyHandler) -> AnyHandler: ...

    @overload
    def handler(self, *, topic: str) -> Callable[[AnyHandler], AnyHandler]: ...

    def handler(self, function: Any = None, *, topic: str | None = None) -> Any:
        """``@worker.handler`` for all topics, ``@worker.handler(topic="orders")`` for one. The function takes a ``Message``; it
        may be a coroutine function. What it returns is ignored; what it raises is a failure. InvalidArgument when it cannot be
        called."""
        if function is None and topic is not None:

            def register(handler: Any) -> Any:
                self._handlers.add(handler, topic, self._options.topics)
                return handler

            return register
        self._handlers.add(function, topic, self._options.topics)
        return function

    # -- running -------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Work until ``stop`` is called or SIGTERM or SIGINT comes; a second signal stops now.

        True when everything that was begun was finished and committed. Raises what stops a worker for good: BrokerUnavailable,
        UnknownTopic, TopicNotCreated, NotAuthorized, InvalidArgument when a topic has no handler. A worker that was stopped may
        be run again.
        """
        with stopping_on_signals(self.stop, self.stop_now):
            return self._run(None)

    async def run_async(self) -> bool:
        """As ``run``, for a program with an asyncio loop: async handlers run on that loop, the polling in a thread of its own.
        Cancelling it stops the worker gracefully. Signals are the program's own business."""
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(asyncio.to_thread(self._run, loop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise

    def stop(self) -> None:
        """Begin nothing more, wait for what is under way up to ``drain_timeout``, commit, leave the group. Returns at once; from
        any thread, from a handler, or from a signal."""
        self._is_stop_wanted = True
        session = self._session
        if session is not None:
            session.stop()

    def stop_now(self) -> None:
        """Wait for nothing: what is under way will be handled again."""
        self._is_hurried = self._is_stop_wanted = True
        session = self._session
        if session is not None:
            session.stop_now()

    def _run(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        if not self._lock.acquire(blocking=False):
            raise InvalidArgument("the worker is running already")
        own_loop: LoopThread | None = None
        deduplicator = self._options.deduplicate
        try:
            handlers = self._handlers.by_topic(self._options.topics)
            if deduplicator is not None:
                window = self._options.backoff.window(self._options.retries)
                deduplicator.open(self._options.group, remember_seconds_of(window))
            reports: deque[Report] = deque()
            policy = self._policy()
            routes = self._make_routes(handlers, reports)
            if loop is None and any(route.is_async for route in routes.values()):
                own_loop = LoopThread(f"{self._options.group}-asyncio")
                loop = own_loop.loop
            self._open_slots(policy, loop)
            session = Session(
                self._options,
                routes,
                policy,
                self._counts,
                reports,
                clock=self._clock,
                randomness=self._randomness,
                liveness=self._liveness,
                stopping=self._stopping,
            )
            self._session = session
            if self._is_hurried:
                session.stop_now()
            elif self._is_stop_wanted:
                session.stop()
            return session.run()
        finally:
            self._stopping.set()
            self._end(own_loop, deduplicator)

    def _end(self, own_loop: LoopThread | None, deduplicator: Deduplicator | None) -> None:
        try:
            for route in self._routes:
                if route.execution.slots is not None:
                    route.execution.slots.close()
            if own_loop is not None:
                own_loop.close()
            if deduplicator is not None and not self._is_hurried:
                deduplicator.close()
        finally:
            self._session = None
            self._stopping = threading.Event()
            self._is_stop_wanted = self._is_hurried = False
            self._lock.release()

    def _policy(self) -> FailurePolicy:
        options = self._options
        return FailurePolicy(
            retries=options.retries,
            in_place_retries=options.in_place_retries,
            backoff=options.backoff,
            retriable=options.retriable,
            levels=options.levels,
        )

    def _make_routes(self, handlers: Mapping[str, Handler], reports: deque[Report]) -> dict[str, Route]:
        """One for each handler; by topic."""
        options = self._options
        routes: dict[str, Route] = {}
        by_handler: dict[int, Route] = {}
        for topic, handler in handlers.items():
            route = by_handler.get(id(handler))
            if route is None:
                dispatch = UnorderedDispatch() if options.order == "none" else LaneDispatch()
                execution = Execution(dispatch, holds_failed_lanes=options.order == "key", reports=reports)
                breaker = None if options.circuit_breaker is None else Breaker(options.circuit_breaker)
                route = by_handler[id(handler)] = Route(handler, execution, breaker)
            routes[topic] = route
        self._routes = list(by_handler.values())
        return routes

    def _open_slots(self, policy: FailurePolicy, loop: asyncio.AbstractEventLoop | None) -> None:
        options = self._options
        rules = Rules(
            in_place_retries=options.in_place_retries,
            is_retriable=policy.is_retriable,
            deduplicator=options.deduplicate,
            message_id=options.message_id,
            randomness=self._randomness,
            stopping=self._stopping,
        )
        for route in self._routes:
            execution = route.execution
            if route.is_async:
                assert loop is not None
                execution.slots = AsyncioSlots(execution, make_async_attempt(route.handler, rules), options.concurrency, loop)
            else:
                attempt = make_attempt(route.handler, rules)
                execution.slots = ThreadSlots(execution, attempt, options.concurrency, f"{options.group}-{route.name}")

    # -- looking at it -------------------------------------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """Whether the group has given it partitions, or told it that there are none."""
        session = self._session
        return session is not None and session.is_joined

    def alive(self) -> bool:
        """Whether it polls, and no handler runs for longer than ``liveness_timeout``: for a supervisor that restarts what is
        not."""
        return self._liveness.is_alive(self._clock.monotonic_ms())

    def metrics(self) -> WorkerMetrics:
        """One moment of what it counts, from any thread; ``metrics().text(group)`` is Prometheus' format."""
        session, counts, routes = self._session, self._counts, self._routes
        histogram = joined(each for route in routes for each in route.execution.histograms)
        now_ns = self._clock.monotonic_ns()
        return WorkerMetrics(
            handled=counts.handled,
            failed=counts.failed,
            retried=counts.retried,
            dead=counts.dead,
            duplicates=counts.duplicates,
            skipped=counts.skipped,
            waited=counts.waited,
            put_back=counts.put_back,
            queued=sum(route.execution.queued for route in routes),
            in_flight=0 if session is None else session.in_flight,
            lag={} if session is None else session.lag,
            breakers={route.name: route.breaker.state.value for route in routes if route.breaker is not None},
            seconds_total=histogram.sum / NANOSECONDS_PER_SECOND,
            seconds_p50=quantile_seconds(histogram, 0.5),
            seconds_p99=quantile_seconds(histogram, 0.99),
            longest_running_seconds=max((route.execution.oldest_ns(now_ns) for route in routes), default=0)
            / NANOSECONDS_PER_SECOND,
            histogram=histogram,
        )
