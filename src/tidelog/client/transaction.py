"""Transactions: messages to any partitions, and the offsets of their input, all of it or nothing.

    with producer.transaction() as tx:
        tx.send("totals", ...)
        tx.send_offsets(consumer)

Every call of librdkafka's transactional API ends in one of four ways, which are distinguished here and nowhere else:

- it succeeds;
- it is retriable, and the same call again resumes it;
- the transaction must be aborted. That is done at once and raises TransactionFailed: nothing becomes visible, and repeating all
  of
  it may succeed;
- the producer itself has ended: Fenced if another instance took over its transactional id, TransactionFatal otherwise. A commit
  that was never answered is TransactionOutcomeUnknown: it is visible as a whole or not at all, and the next producer with the id
  makes the broker decide.

The handle accepts messages only between begin and end, so that no message is sent outside of a transaction by mistake.
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
from tidelog.client.producer_handle import ProducerHandle

if TYPE_CHECKING:
    from tidelog.client.producer import Producer

# The time-out of one call of librdkafka. The call is repeated, so this is only how soon an interrupt or the deadline is noticed.
_CALL_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_CLOSE_SECONDS_MAX = 5.0


class _MustAbort(Exception):
    """librdkafka says that the transaction can no longer be committed."""


class Transaction:
    """One transaction after the other; each ``with`` is one. Use it from one thread at a time.

    The end of the block commits: from then on readers with read_committed see all of it. An exception that leaves the block
    aborts, and they never see any of it. TransactionFailed: it was aborted and may be repeated. Fenced: another instance took
    over, so stop. TransactionFatal: close the producer and open a new one.
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
        """Like ``Producer.send``, with the same arguments. The future says that the message is written; readers see it after the
        commit."""
        self.check_active()
        return self._producer.send(topic, value, **arguments)

    def send_offsets(self, consumer: Any, offsets: Sequence[Any] | None = None) -> None:
        """Commit the consumer's positions with this transaction: what it has polled counts as read exactly if this is committed.

        ``consumer`` is a Consumer of ours or of confluent-kafka with a group; ``offsets`` (of confluent_kafka.TopicPartition)
        replaces its positions. Call it after the messages were processed. A consumer that lost its place in the group makes the
        transaction fail.
        """
        self.check_active()
        try:
            if offsets is None and hasattr(consumer, "transaction_offsets"):
                # Our own Consumer: librdkafka's position may be beyond what it has handed out.
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
        """Like ``send_offsets``, for callers who have the offsets and the ``consumer_group_metadata`` already."""
        self.check_active()
        if offsets:
            send = self._handle.raw.send_offsets_to_transaction
            self._run_or_abort("send offsets", lambda timeout: send(list(offsets), metadata, timeout))

    # -- begin and end, for those who cannot use a with -----------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction; InvalidArgument if one is open."""
        if self._end is not None:
            raise self._end
        if self._is_active:
            raise InvalidArgument("a transaction is open already: a producer has one at a time")
        self._run("begin the transaction", lambda _: self._handle.raw.begin_transaction())
        self._is_active = True
        self._handle.open()

    def commit(self) -> None:
        """Wait for all messages and commit. When this returns, readers see all of it."""
        self.check_active()
        self._shut()
        try:
            self._run_or_abort("commit", self._handle.raw.commit_transaction, is_commit=True)
        finally:
            self._is_active = False

    def abort(self) -> None:
        """Abort: readers with read_committed never see any of it, and the futures of messages not yet written fail."""
        if not self._is_active:
            return
        self._shut()
        self._is_active = False
        try:
            self._run("abort", self._handle.raw.abort_transaction)
        except _MustAbort as error:
            raise self._over(TransactionFatal(f"abort: {error}: close the producer and open a new one")) from error
        self._handle.flush(_CLOSE_SECONDS_MAX)
        # The caller asked for their end, or learns of it from the TransactionFailed that follows.
        self._handle.take_unseen()

    def close(self) -> None:
        """Abort an open transaction if that succeeds in a short time; otherwise the broker aborts it later."""
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
                f"{what}: {error}: the transaction was aborted, nothing of it becomes visible; repeat all of it"
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
                    typed.__cause__ = raised
                    raise _MustAbort(error.str()) from typed
                if not error.retriable():
                    raise typed from raised
                if monotonic() >= deadline:
                    raise self._timed_out(what, typed, is_commit) from raised
                self._handle.poll(_PAUSE_SECONDS)
            else:
                return

    def _timed_out(self, what: str, typed: TidelogError, is_commit: bool) -> TidelogError:
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
        """Note that the producer can no longer be used: every later call raises ``error``."""
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
