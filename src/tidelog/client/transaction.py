"""Transactions: messages to any partitions, and the offsets of what they were made from, all of it or nothing.

    with producer.transaction() as tx:
        tx.send("totals", ...)
        tx.send_offsets(consumer)

Every call of librdkafka's transactional API ends in one of four ways, told apart here and nowhere else: done; retriable, and then
the same call again resumes it; the transaction must be aborted, which is done at once and becomes TransactionFailed: nothing
of it will be seen and doing all of it again may succeed; or the producer itself is over: Fenced when another instance took its
transactional id, TransactionFatal otherwise. A commit that was never answered is TransactionOutcomeUnknown: it is all there or
not at all, and whoever opens the id next makes the broker settle it.

The handle's door is open only between begin and end, so a message cannot fall outside of a transaction by mistake.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaError, KafkaException

from tidelog.client.errors import (
    Closed,
    Fenced,
    InvalidArgument,
    TidelogError,
    TransactionFailed,
    TransactionFatal,
    TransactionOutcomeUnknown,
)
from tidelog.client.futures import Delivery
from tidelog.client.producer_handles import ProducerHandle

if TYPE_CHECKING:
    from tidelog.client.producer import Producer

# One call of librdkafka's; it is called again, so this is only how soon an interrupt or the deadline is noticed.
_CALL_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_CLOSE_SECONDS_MAX = 5.0


class _MustAbort(Exception):
    """librdkafka says that the transaction cannot be committed any more."""


class Transaction:
    """One transaction after the other; each ``with`` is one. Not for several threads at once.

    At the end of the block it is committed: readers with read_committed see all of it from then on. When an exception leaves the
    block it is aborted, and they never see any of it. TransactionFailed: aborted, may be done again. Fenced: another
    instance took over, stop. TransactionFatal: close the producer and open a new one.
    """

    def __init__(self, producer: "Producer", handle: ProducerHandle, timeout: float) -> None:
        self._producer = producer
        self._handle = handle
        self._timeout = timeout
        self._is_active = False
        self._end: TidelogError | None = None
        self._run("open transactions", handle.raw.init_transactions)
        self._shut()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self._is_active:
            return
        if error is None:
            self.commit()
        elif self._end is None:
            try:
                self.abort()
            except TidelogError as problem:
                raise problem from error

    # -- within a transaction ------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any = None, **arguments: Any) -> Delivery:
        """As ``Producer.send``, with the same arguments. Its future says that it is written; it is seen after the commit."""
        self.check_active()
        return self._producer.send(topic, value, **arguments)

    def send_offsets(self, consumer: Any, offsets: Sequence[Any] | None = None) -> None:
        """Commit the consumer's positions with this transaction: what it has polled counts as read exactly when this is seen.

        ``consumer`` is a Consumer of ours or of confluent-kafka with a group; ``offsets`` (of confluent_kafka.TopicPartition)
        replaces its positions. Call it after the messages were processed. A consumer that lost its place in the group makes the
        transaction fail.
        """
        self.check_active()
        try:
            if offsets is None and hasattr(consumer, "transaction_offsets"):
                # Ours: librdkafka's position may be beyond what it has handed out.
                offsets, metadata = consumer.transaction_offsets()
            else:
                raw = getattr(consumer, "handle", consumer)
                if offsets is None:
                    offsets = [position for position in raw.position(raw.assignment()) if position.offset >= 0]
                metadata = raw.consumer_group_metadata()
        except KafkaException as error:
            raise self._handle.typed(error.args[0], "positions of the consumer") from error
        except RuntimeError as error:
            raise Closed("send_offsets: the consumer is closed") from error
        self.send_positions(offsets, metadata)

    def send_positions(self, offsets: Sequence[Any], metadata: Any) -> None:
        """As ``send_offsets``, of a consumer that was asked already: its offsets and its ``consumer_group_metadata``."""
        self.check_active()
        if offsets:
            send = self._handle.raw.send_offsets_to_transaction
            self._run_or_abort("send offsets", lambda timeout: send(list(offsets), metadata, timeout))

    # -- begin and end, for those who cannot use a with -----------------------------------------------------------------------

    def begin(self) -> None:
        """Begin; InvalidArgument when one is open already."""
        if self._end is not None:
            raise self._end
        if self._is_active:
            raise InvalidArgument("a transaction is open already: a producer has one at a time")
        self._run("begin the transaction", lambda _: self._handle.raw.begin_transaction())
        self._is_active = True
        self._handle.open()

    def commit(self) -> None:
        """Wait for all messages and commit. Returning means that readers see all of it."""
        self.check_active()
        self._shut()
        try:
            self._run_or_abort("commit", self._handle.raw.commit_transaction, is_commit=True)
        finally:
            self._is_active = False

    def abort(self) -> None:
        """Give up: readers with read_committed never see any of it; the futures of messages not yet written fail."""
        if not self._is_active:
            return
        self._shut()
        self._is_active = False
        try:
            self._run("abort", self._handle.raw.abort_transaction)
        except _MustAbort as error:
            raise self._over(TransactionFatal(f"abort: {error}: close the producer and open a new one")) from error
        self._handle.flush(_CLOSE_SECONDS_MAX)
        # Their end was asked for, or is told by the TransactionFailed that follows.
        self._handle.take_unseen()

    def close(self) -> None:
        """Abort what is open, as well as possible in a short time; the broker does it otherwise."""
        if self._is_active and self._end is None:
            self._timeout = min(self._timeout, _CLOSE_SECONDS_MAX)
            try:
                self.abort()
            except TidelogError:
                self._is_active = False
        if self._end is None:
            self._end = Closed("the producer is closed")

    # -- the four ways -------------------------------------------------------------------------------------------------------

    def _run_or_abort(self, what: str, call: Callable[[float], object], *, is_commit: bool = False) -> None:
        try:
            self._run(what, call, is_commit=is_commit)
        except _MustAbort as error:
            self.abort()
            raise TransactionFailed(
                f"{what}: {error}: the transaction was aborted, nothing of it will be seen; do all of it again"
            ) from error.__cause__

    def _run(self, what: str, call: Callable[[float], object], *, is_commit: bool = False) -> None:
        deadline = monotonic() + self._timeout
        while True:
            try:
                call(max(0.1, min(_CALL_SECONDS, deadline - monotonic())))
            except KafkaException as raised:
                error = raised.args[0]
                typed = self._handle.typed(error, what)
                if isinstance(typed, Fenced):
                    raise self._over(typed) from raised
                if error.fatal() or error.code() == KafkaError._FATAL:
                    raise self._over(
                        TransactionFatal(f"{typed}: close the producer and open a new one", code=typed.code)
                    ) from raised
                if error.txn_requires_abort():
                    raise _MustAbort(error.str()) from raised
                if not error.retriable():
                    raise typed from raised
                if monotonic() >= deadline:
                    raise self._given_up(what, typed, is_commit) from raised
                self._handle.poll(_PAUSE_SECONDS)
            else:
                return

    def _given_up(self, what: str, typed: TidelogError, is_commit: bool) -> TidelogError:
        if is_commit:
            return self._over(
                TransactionOutcomeUnknown(
                    f"commit: no answer from {self._handle.addresses} within {self._timeout:g} s: all of it was committed or "
                    "nothing; close the producer and open a new one with the same transactional id, then read which",
                    code=typed.code,
                )
            )
        return self._over(
            TransactionFatal(
                f"{what}: no answer from {self._handle.addresses} within {self._timeout:g} s: "
                "close the producer and open a new one",
                code=typed.code,
            )
        )

    def _over(self, error: TidelogError) -> TidelogError:
        """The producer is of no more use; every later call says why."""
        self._end = error
        self._is_active = False
        self._handle.shut(lambda: error)
        return error

    def _shut(self) -> None:
        self._handle.shut(
            lambda: InvalidArgument("a transactional producer sends within a transaction: with producer.transaction() as tx: ...")
        )

    def check_active(self) -> None:
        if self._end is not None:
            raise self._end
        if not self._is_active:
            raise InvalidArgument("no transaction is open: with producer.transaction() as tx: ...")
