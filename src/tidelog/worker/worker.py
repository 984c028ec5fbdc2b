"""The worker: a handler function, sync or async, and everything around it.

    worker = Worker("127.0.0.1:9092", group="email", topics=["orders"], retries=5, backoff=Backoff(base=1.0, cap=60.0))

    @worker.handler
    def send_email(message): ...

    worker.run()

Applications use this module. ``session`` is one run.
"""

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, TypeVar, overload

from tidelog.client.errors import InvalidArgument
from tidelog.client.tracing import messaging_spans
from tidelog.ports.clock import RealClock
from tidelog.ports.randomness import RealRandomness
from tidelog.worker.breaker import Breaker, CircuitBreaker
from tidelog.worker.deduplicate import Deduplicator, MessageId, default_message_id, remember_seconds_of
from tidelog.worker.dispatch import Dispatch, LaneDispatch, UnorderedDispatch, WeightedDispatch
from tidelog.worker.endpoint import Page, WorkerEndpoint, health_page, metrics_page
from tidelog.worker.execution import BundleReport, HandlerExecution
from tidelog.worker.failures import Backoff, FailurePolicy, Retriable
from tidelog.worker.handler import AttemptRules, Handler, HandlerRegistry, is_async, make_async_attempt, make_attempt
from tidelog.worker.metrics import WorkerCounts, WorkerMetrics, joined, quantile_seconds
from tidelog.worker.options import OFFSET_METADATA_BYTES_MAX, Order, changed_options, checked_options
from tidelog.worker.session import Liveness, Session, SessionSetup
from tidelog.worker.slots import AsyncioSlots, LoopThread, ThreadSlots

AnyHandler = TypeVar("AnyHandler", bound=Handler)

NANOSECONDS_PER_SECOND = 1_000_000_000
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Reads topics as a member of a group and calls a handler for every message.

    **Promise.** Every message is handled at least once, or becomes a dead letter with its story; none is skipped or dropped. An
    offset is committed when everything below it is finished. What is finished above it is remembered in the commit, so that a
    restart repeats little. A handler that raises is tried again: ``in_place_retries`` times at once, then ``retries`` times
    through retry topics (``<topic>.<group>.retry.<n>``) after the ``backoff``; then the message goes to ``<topic>.<group>.dlq``.
    Messages that cannot be decoded, and failures that ``retriable`` (exception classes, or a function) rejects, go there at once.
    A letter is acknowledged before the offset of its message is committed; with ``exactly_once`` both are in one transaction, so
    that there is exactly one letter, except in a case that the guide to retries names. The handler itself may still run more than
    once.

    **Order.** ``"partition"``: one message of a partition at a time, by offset. ``"key"``: one message of a key at a time, by
    offset, keys in parallel; later messages of a key that failed wait behind it. ``"none"``: no order. With ``"partition"`` and
    ``"none"`` a message that failed is handled later than those behind it. Each handler handles up to ``concurrency`` messages at
    once: synchronous ones in threads, asynchronous ones as tasks of one asyncio loop. All members of a group must have the same
    ``order``.

    **Weights.** ``weights={"urgent": 9, "orders": 1}`` divides a handler among topics: while both have messages waiting, nine of
    ten that are begun are of ``urgent``, so that a flood of ordinary messages does not delay the urgent ones; what one does not
    use, the others get. A partition can have a weight of its own: ``weights={("orders", 0): 9}``, with a producer that keeps it
    for the messages that matter (``tidelog.client.partitioners.SetAside``). The weight is 1 where none is given. A message that
    runs is never interrupted, and topics with handlers of their own do not compete. With ``order="partition"`` a topic never has
    more messages under way than partitions, whatever its weight.

    ``deduplicate`` recognises messages that were handled before, by ``message_id``; ``tidelog.worker.deduplicate`` documents its
    promise. ``circuit_breaker`` pauses and probes when failures indicate that a dependency is down; None disables it.
    ``drain_timeout`` is how long a stop or a rebalance waits for messages under way. ``prefetch_messages`` and ``prefetch_bytes``
    bound what is read ahead, after a restart as well. ``instance_id`` is a name of this instance that survives restarts, so that
    it gets its partitions back at once. ``liveness_file`` is touched every second while the worker polls and no handler runs for
    longer than ``liveness_timeout``. ``metrics_port`` serves ``/metrics`` and ``/health`` over HTTP on ``metrics_host`` while the
    worker runs; 0 takes a free port. ``config`` has settings of librdkafka. Times are in seconds.
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
        weights: Mapping[str | tuple[str, int], float] | None = None,
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
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        config: Mapping[str, object] | None = None,
    ) -> None:
        """InvalidArgument names the argument that is wrong. Nothing is connected yet."""
        self._options = checked_options(
            bootstrap,
            topics,
            group=group,
            retries=retries,
            backoff=Backoff() if backoff is None else backoff,
            in_place_retries=in_place_retries,
            order=order,
            concurrency=concurrency,
            weights=weights,
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
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            config=config,
        )
        self._handlers = HandlerRegistry()
        self._clock = RealClock()
        self._randomness = RealRandomness()
        self._liveness = Liveness(liveness_timeout, liveness_file)
        self._counts = WorkerCounts()
        self._executions: list[HandlerExecution] = []
        self._session: Session | None = None
        self._endpoint: WorkerEndpoint | None = None
        self._stopping = threading.Event()
        self._is_stop_wanted = self._is_hurried = False
        self._lock = threading.Lock()

    # -- handlers ------------------------------------------------------------------------------------------------------------

    @overload
    def handler(self, function: AnyHandler) -> AnyHandler: ...

    @overload
    def handler(self, *, topic: str) -> Callable[[AnyHandler], AnyHandler]: ...

    def handler(self, function: Any = None, *, topic: str | None = None) -> Any:
        """``@worker.handler`` for all topics, ``@worker.handler(topic="orders")`` for one. The function takes a ``Message`` and
        may be a coroutine function. Its result is ignored; an exception is a failure. InvalidArgument if it is not callable."""
        if function is None and topic is not None:

            def register(handler: Any) -> Any:
                self._handlers.add(handler, topic, self._options.topics)
                return handler

            return register
        self._handlers.add(function, topic, self._options.topics)
        return function

    # -- running -------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Work until ``stop`` is called or SIGTERM or SIGINT arrives; a second signal stops now.

        Returns True if everything that was begun was finished and committed. Raises what stops a worker for good:
        BrokerUnavailable, UnknownTopic, TopicNotCreated, NotAuthorized, or InvalidArgument if a topic has no handler. A worker
        that was stopped may be run again.
        """
        with _stopping_on_signals(self.stop, self.stop_now):
            return self._run(None)

    async def run_async(self) -> bool:
        """``run`` for a program with an asyncio loop: asynchronous handlers run on that loop, the polling in a thread of its own.
        Cancelling it stops the worker gracefully. The program handles signals itself."""
        loop = asyncio.get_running_loop()
        running = asyncio.ensure_future(asyncio.to_thread(self._run, loop))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await running
            raise

    def stop(self) -> None:
        """Begin nothing more, wait for messages under way up to ``drain_timeout``, commit, and leave the group. Returns at once;
        may be called from any thread, from a handler, or from a signal handler."""
        self._is_stop_wanted = True
        session = self._session
        if session is not None:
            session.stop()

    def stop_now(self) -> None:
        """Stop without waiting: messages under way will be handled again."""
        self._is_hurried = self._is_stop_wanted = True
        session = self._session
        if session is not None:
            session.stop_now()

    def _run(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        if not self._lock.acquire(blocking=False):
            raise InvalidArgument("the worker is already running")
        own_loop: LoopThread | None = None
        deduplicator = self._options.deduplicate
        try:
            handlers = self._handlers.by_topic(self._options.topics)
            self._endpoint = self._open_endpoint()
            if deduplicator is not None:
                window = self._options.backoff.window(self._options.retries)
                deduplicator.open(self._options.group, remember_seconds_of(window))
            reports: deque[BundleReport] = deque()
            policy = self._policy()
            # By identity: a handler may be an object that has no hash.
            by_id = {id(handler): (handler, self._make_execution(handler, reports)) for handler in handlers.values()}
            self._executions = [execution for _, execution in by_id.values()]
            if loop is None and any(is_async(handler) for handler in handlers.values()):
                own_loop = LoopThread(f"{self._options.group}-asyncio")
                loop = own_loop.loop
            self._attach_slots(by_id.values(), policy, loop)
            session = Session(
                SessionSetup(
                    options=self._options,
                    executions={topic: by_id[id(handler)][1] for topic, handler in handlers.items()},
                    policy=policy,
                    counts=self._counts,
                    reports=reports,
                    clock=self._clock,
                    randomness=self._randomness,
                    liveness=self._liveness,
                    stopping=self._stopping,
                )
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
            if self._endpoint is not None:
                self._endpoint.close()
            for execution in self._executions:
                execution.close()
            if own_loop is not None:
                own_loop.close()
            if deduplicator is not None and not self._is_hurried:
                deduplicator.close()
        finally:
            self._session = None
            self._endpoint = None
            self._stopping = threading.Event()
            self._is_stop_wanted = self._is_hurried = False
            self._lock.release()

    def configure(
        self, *, concurrency: int | None = None, metrics_port: int | None = None, metrics_host: str | None = None
    ) -> None:
        """Change what whoever runs the worker decides, as ``tidelog worker run`` does; None leaves a value as it is. It counts
        from the next run on. InvalidArgument if a value is out of range."""
        self._options = changed_options(self._options, concurrency, metrics_port, metrics_host)

    def _open_endpoint(self) -> WorkerEndpoint | None:
        options = self._options
        if options.metrics_port is None:
            return None
        pages: dict[str, Page] = {
            "/metrics": lambda: metrics_page(self.metrics().text(options.group)),
            "/health": lambda: health_page(self.alive(), self.is_joined),
        }
        return WorkerEndpoint(options.metrics_host, options.metrics_port, pages)

    def _policy(self) -> FailurePolicy:
        options = self._options
        return FailurePolicy(
            retries=options.retries,
            in_place_retries=options.in_place_retries,
            backoff=options.backoff,
            retriable=options.retriable,
            levels=options.levels,
        )

    def _make_execution(self, handler: Handler, reports: deque[BundleReport]) -> HandlerExecution:
        options = self._options
        return HandlerExecution(
            getattr(handler, "__qualname__", type(handler).__qualname__),
            self._make_dispatch(),
            reports,
            holds_failed_lanes=options.order == "key",
            breaker=None if options.circuit_breaker is None else Breaker(options.circuit_breaker),
        )

    def _make_dispatch(self) -> Dispatch:
        is_ordered = self._options.order != "none"
        if self._options.weights:
            return WeightedDispatch(self._options.weights.by_share, is_ordered=is_ordered)
        return LaneDispatch() if is_ordered else UnorderedDispatch()

    def _attach_slots(
        self,
        executions: Iterable[tuple[Handler, HandlerExecution]],
        policy: FailurePolicy,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        options = self._options
        rules = AttemptRules(
            in_place_retries=options.in_place_retries,
            is_retriable=policy.is_retriable,
            deduplicator=options.deduplicate,
            message_id=options.message_id,
            randomness=self._randomness,
            stopping=self._stopping,
            group=options.group,
            spans=messaging_spans(),
        )
        for handler, execution in executions:
            if is_async(handler):
                assert loop is not None
                execution.attach(AsyncioSlots(execution, make_async_attempt(handler, rules), options.concurrency, loop))
            else:
                name = f"{options.group}-{execution.name}"
                execution.attach(ThreadSlots(execution, make_attempt(handler, rules), options.concurrency, name))

    # -- observation ---------------------------------------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """Whether the group has assigned partitions to it, or told it that there are none."""
        session = self._session
        return session is not None and session.is_joined

    @property
    def metrics_port(self) -> int | None:
        """The port of ``/metrics`` and ``/health`` while the worker runs; None otherwise."""
        endpoint = self._endpoint
        return None if endpoint is None else endpoint.port

    def alive(self) -> bool:
        """Whether it polls, and no handler runs for longer than ``liveness_timeout``. For a supervisor that restarts it if
        not."""
        return self._liveness.is_alive(self._clock.monotonic_ms())

    def metrics(self) -> WorkerMetrics:
        """A snapshot, from any thread; ``metrics().text(group)`` is in Prometheus' format."""
        session, counts, executions = self._session, self._counts, self._executions
        histogram = joined(each for execution in executions for each in execution.histograms)
        now_ns = self._clock.monotonic_ns()
        return WorkerMetrics(
            handled=counts["handled"],
            failed=counts["failed"],
            retried=counts["retried"],
            dead=counts["dead"],
            duplicates=counts["duplicates"],
            skipped=counts["skipped"],
            waited=counts["waited"],
            put_back=counts["put_back"],
            queued=sum(execution.queued for execution in executions),
            in_flight=0 if session is None else session.in_flight,
            lag={} if session is None else session.lag,
            breakers={each.name: each.breaker.state.value for each in executions if each.breaker is not None},
            seconds_total=histogram.sum / NANOSECONDS_PER_SECOND,
            seconds_p50=quantile_seconds(histogram, 0.5),
            seconds_p99=quantile_seconds(histogram, 0.99),
            longest_running_seconds=max((each.oldest_ns(now_ns) for each in executions), default=0) / NANOSECONDS_PER_SECOND,
            histogram=histogram,
        )


@contextmanager
def _stopping_on_signals(stop: Callable[[], None], stop_now: Callable[[], None]) -> Iterator[None]:
    """Within the block the first SIGTERM or SIGINT calls ``stop``, the second ``stop_now``. Restores the previous handlers.

    Only in the main thread, where Python delivers signals; elsewhere whoever runs the worker calls ``stop`` and ``stop_now``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def handle(number: int, _: object) -> None:
        arrived.append(number)
        if len(arrived) == 1:
            stop()
        else:
            stop_now()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
