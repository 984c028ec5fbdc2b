"""The exceptions of the toolkit: one class for each case that callers handle differently. The message says what to do next.

Everything that a user's input, the network or the cluster can cause is a ``TidelogError``; anything else is a bug of ours.
``retriable`` says whether repeating the same call later can succeed. ``code`` is the error code of Kafka (positive) or of
librdkafka (negative), where there is one. ``from_kafka_error`` is the only place where librdkafka's errors become ours;
``kafka_errors`` applies it to a block of code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException


class TidelogError(Exception):
    """The base class of all errors of the toolkit.

    ``retriable``: the same call may succeed later. ``code``: the error code of Kafka or librdkafka, None if there is none.
    """

    retriable: bool = False
    code: int | None = None
    is_seen: bool = False
    """Whether the application has seen this failure; ``flush`` raises the ones that it has not seen."""

    reason: str | None = None
    """The message of the broker or librdkafka, in its own words; None if the error did not come from them."""

    def __init__(self, message: str, *, code: int | None = None, retriable: bool | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retriable is not None:
            self.retriable = retriable

    def mark_seen(self) -> None:
        """Note that the application has seen this failure, so ``flush`` need not raise it."""
        self.is_seen = True


def install_extra(extra: str) -> str:
    """Say how to install a missing optional dependency, as the end of a message. Tidelog is in no package index yet."""
    return f"install Tidelog with its extra {extra}, from a clone of its repository or from its wheel: pip install '.[{extra}]'"


class InvalidArgument(TidelogError, ValueError):
    """An argument has a wrong value, contradicts another one, or would break a promise of the class."""


class Closed(TidelogError):
    """The producer, consumer, table or worker is closed."""


class BrokerUnavailable(TidelogError):
    """No broker answers at the addresses that the message names."""

    retriable = True


class TimedOut(TidelogError):
    """No answer came in time. The request may or may not have been executed."""

    retriable = True


class NotAuthorized(TidelogError):
    """The cluster does not permit this user to do that."""


class UnknownTopic(TidelogError):
    """There is no such topic or partition."""


class TopicExists(TidelogError):
    """A topic of that name already exists."""


class InvalidTopic(TidelogError):
    """The cluster refuses the topic's name, partition count or settings."""


class SerializationError(TidelogError):
    """The value or key cannot be converted to bytes. The message names the type and the topic."""


class MessageTooLarge(TidelogError):
    """The message is larger than the producer or the topic allows. The message says which of the two, and names the setting."""

    refused: "RefusedMessage | None" = None
    """What a broker refused because of its topic's limit; None if the client refused it, before any broker saw it."""


class RefusedMessage(NamedTuple):
    """A message whose batch a broker found too large."""

    topic: str
    bytes: int
    """The sum of its key, value and headers."""
    client_limit: int
    """``message.max.bytes`` of the client, which allowed it."""


class BufferFull(TidelogError):
    """The producer's buffer stayed full for ``max_block_ms``: messages arrive faster than the cluster accepts them."""

    retriable = True


class Shed(BufferFull):
    """The buffer was full and the topic is marked as low-value, so this message was dropped and counted."""


class DeliveryFailed(TidelogError):
    """The message was not acknowledged. A second attempt may write a copy, unless the error says that nothing was written."""


class Fenced(TidelogError):
    """Another instance with the same id took over. This one must stop; what it had not committed is void."""


class TransactionFailed(TidelogError):
    """The transaction was aborted, and nothing of it becomes visible. Repeating all of it may succeed."""

    retriable = True


class TransactionFatal(TidelogError):
    """The producer cannot continue: close it and open a new one with the same transactional id."""


class TransactionOutcomeUnknown(TransactionFatal):
    """The commit request got no answer. The transaction is either whole or void; a new producer finds out which."""


class GroupError(TidelogError):
    """The consumer group refused: this is no longer a member, a rebalance is under way, or members are still active."""


class Rebalanced(GroupError):
    """The group has rebalanced since: this member no longer owns the partitions, and another one reads them."""


class UnknownGroup(GroupError):
    """There is no consumer group of that name."""


class CommitMetadataTooLarge(GroupError):
    """The metadata of a committed offset is longer than the broker allows (``offset.metadata.max.bytes``)."""


class UnknownQueue(UnknownTopic):
    """There is no queue of that name."""


class NotSupported(TidelogError):
    """The brokers, or this topic, cannot do that. The message says why, and what would be needed."""


class LockLost(TidelogError):
    """The job is no longer this worker's: its lock has expired, or was released when the connection ended. It is delivered again,
    perhaps to another worker, unless this was its last delivery. ``deliveries`` counts them, this one included."""

    def __init__(self, message: str, deliveries: int) -> None:
        super().__init__(message)
        self.deliveries = deliveries

    def __reduce__(self) -> tuple[type["LockLost"], tuple[str, int]]:
        """By default an exception is rebuilt from its message alone."""
        return LockLost, (str(self), self.deliveries)


class AlreadySettled(InvalidArgument):
    """The job was acknowledged, released or rejected before, and that is final for this delivery."""


_UNREACHABLE = frozenset(
    (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._DESTROY_BROKER)
)

# A leader is moving, a coordinator is loading, a log is being opened or deleted: repeat the request.
_PASSING = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
)

_CLASSES: dict[int, tuple[type[TidelogError], str]] = {
    KafkaError._TIMED_OUT: (TimedOut, "try again, or allow more time"),
    KafkaError._TIMED_OUT_QUEUE: (TimedOut, "try again, or allow more time"),
    KafkaError.REQUEST_TIMED_OUT: (TimedOut, "try again, or allow more time"),
    KafkaError._UNKNOWN_TOPIC: (UnknownTopic, "create it first: admin.create_topic(...)"),
    KafkaError.UNKNOWN_TOPIC_OR_PART: (UnknownTopic, "create it first: admin.create_topic(...)"),
    KafkaError._UNKNOWN_PARTITION: (UnknownTopic, "the topic has fewer partitions: see admin.describe_topic(...)"),
    KafkaError._NOENT: (UnknownTopic, "the topic does not exist, or has fewer partitions: see admin.describe_topic(...)"),
    KafkaError.TOPIC_ALREADY_EXISTS: (TopicExists, "pass exists_ok=True if that is fine"),
    KafkaError.TOPIC_EXCEPTION: (InvalidTopic, "names have up to 249 of the characters a-z A-Z 0-9 . _ -"),
    KafkaError.INVALID_PARTITIONS: (InvalidTopic, "partitions can be added to, not taken away, and there is at least one"),
    KafkaError.INVALID_REPLICATION_FACTOR: (InvalidTopic, "there are not that many brokers"),
    KafkaError.INVALID_CONFIG: (InvalidTopic, "see the settings' names and ranges"),
    KafkaError.POLICY_VIOLATION: (InvalidTopic, "the cluster's policy refuses it: ask who runs it"),
    KafkaError.MSG_SIZE_TOO_LARGE: (
        MessageTooLarge,
        "it is larger than max.message.bytes of the topic: raise that, or send a reference to the data",
    ),
    KafkaError.RECORD_LIST_TOO_LARGE: (MessageTooLarge, "raise segment.bytes of the topic, or send less at once"),
    KafkaError._QUEUE_FULL: (BufferFull, "send more slowly, or allow a larger buffer_bytes"),
    KafkaError._FENCED: (Fenced, "stop this instance"),
    KafkaError.INVALID_PRODUCER_EPOCH: (Fenced, "stop this instance"),
    KafkaError.PRODUCER_FENCED: (Fenced, "stop this instance"),
    KafkaError.FENCED_INSTANCE_ID: (Fenced, "another member has this group.instance.id: give each its own"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (NotAuthorized, "ask for the permission on the topic"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: (NotAuthorized, "ask for the permission on the group"),
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: (NotAuthorized, "ask for the permission on the cluster"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (NotAuthorized, "ask for the permission on the transactional id"),
    KafkaError._AUTHENTICATION: (NotAuthorized, "check the user and the password"),
    KafkaError.SASL_AUTHENTICATION_FAILED: (NotAuthorized, "check the user and the password"),
    KafkaError.UNKNOWN_MEMBER_ID: (Rebalanced, "the member was removed from its group: poll again to join"),
    KafkaError.ILLEGAL_GENERATION: (Rebalanced, "the group has rebalanced since: poll again"),
    KafkaError.STALE_MEMBER_EPOCH: (Rebalanced, "the group has rebalanced since: poll again"),
    KafkaError.REBALANCE_IN_PROGRESS: (Rebalanced, "try again when the rebalance is over"),
    KafkaError.NON_EMPTY_GROUP: (GroupError, "stop the group's members first"),
    KafkaError.GROUP_ID_NOT_FOUND: (UnknownGroup, "there is no group of that name"),
    KafkaError._ASSIGNMENT_LOST: (Rebalanced, "the group has rebalanced since: poll again"),
    KafkaError.OFFSET_METADATA_TOO_LARGE: (CommitMetadataTooLarge, "shorten the metadata"),
    KafkaError.GROUP_SUBSCRIBED_TO_TOPIC: (GroupError, "stop the members that read the topic first"),
    KafkaError._INVALID_ARG: (InvalidArgument, "see the documentation of the call"),
    KafkaError._STATE: (InvalidArgument, "the call does not fit what was done before"),
}


def from_kafka_error(error: Any, what: str, addresses: str, *, otherwise: type[TidelogError] = TidelogError) -> TidelogError:
    """Convert ``error`` (a confluent_kafka.KafkaError or KafkaException) to an error of the toolkit.

    ``what`` says what was being done ("send to orders"), ``addresses`` are the bootstrap servers. ``otherwise`` is the class
    of an error whose code is in no table here.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else error
    code: int = cause.code()
    if code in _UNREACHABLE:
        typed: TidelogError = BrokerUnavailable(
            f"{what}: no broker answers at {addresses} ({cause.str()}): check the address and that the broker runs", code=code
        )
    else:
        kind, advice = _CLASSES.get(code, (otherwise, ""))
        sentence = f"{what}: {cause.str()} ({cause.name()})"
        # librdkafka itself sets the flag for some calls only.
        retriable = kind.retriable or code in _PASSING or bool(cause.retriable())
        typed = kind(f"{sentence}: {advice}" if advice else sentence, code=code, retriable=retriable)
    typed.reason = cause.str()
    return typed


def from_produce_error(error: KafkaException, topic: str, addresses: str, client_limit: int) -> TidelogError:
    """``from_kafka_error`` for a message that librdkafka itself refused, before any broker saw it. Of two limits with almost the
    same name this one is the client's."""
    typed = from_kafka_error(error, f"send to {topic}", addresses, otherwise=DeliveryFailed)
    if not isinstance(typed, MessageTooLarge):
        return typed
    advice = (
        f"it is larger than message.max.bytes of this client ({client_limit:,}): pass Producer(max_message_bytes=...) or "
        f"-X message.max.bytes=..., and see that max.message.bytes of topic {topic} allows it"
    )
    larger = MessageTooLarge(f"send to {topic}: {advice}", code=typed.code)
    larger.reason = f"{typed.reason}: {advice}"
    return larger


def from_delivery_error(error: Any, message: Any, addresses: str, client_limit: int) -> TidelogError:
    """``from_kafka_error`` for the delivery report of ``message``, which is confluent-kafka's. If it was too large, the limit is
    the topic's."""
    topic: str = message.topic()
    typed = from_kafka_error(error, f"send to {topic}", addresses, otherwise=DeliveryFailed)
    if not isinstance(typed, MessageTooLarge) or error.code() != KafkaError.MSG_SIZE_TOO_LARGE:
        return typed
    parts = [message.key(), message.value()]
    for name, value in message.headers() or ():
        parts += [name, value]
    refused = RefusedMessage(topic, sum(len(part) for part in parts if part is not None), client_limit)
    return refused_by_topic(refused, None)


def refused_by_topic(refused: RefusedMessage, topic_limit: int | None) -> MessageTooLarge:
    """The error about a message that exceeded ``max.message.bytes`` of its topic, which is ``topic_limit`` where it is known."""
    value = "1,048,588 unless set" if topic_limit is None else f"{topic_limit:,}"
    what = f"the message has {refused.bytes:,} bytes, and its batch"
    if topic_limit is not None and refused.bytes > topic_limit:
        what = f"the message has {refused.bytes:,} bytes, which"
    reason = (
        f"{what} is more than max.message.bytes of topic {refused.topic} ({value}) allows; message.max.bytes of this client "
        f"({refused.client_limit:,}) does allow it. Raise the topic's limit with tidelog topics alter {refused.topic} "
        "--config max.message.bytes=BYTES, send smaller batches (batch.size), or send a reference to the data"
    )
    error = MessageTooLarge(f"send to {refused.topic}: {reason}", code=KafkaError.MSG_SIZE_TOO_LARGE)
    error.reason = reason
    error.refused = refused
    return error


@contextmanager
def kafka_errors(what: str, addresses: str, *, otherwise: type[TidelogError] = TidelogError) -> Iterator[None]:
    """Raise confluent-kafka's errors as errors of the toolkit; a TypeError or ValueError becomes InvalidArgument.

    Python raises an interruption by SIGINT without a value if it arrives while a callback begins. confluent-kafka keeps the value
    of a callback's exception only, so its call ends with a SystemError that has no cause. That is the interruption.
    """
    try:
        yield
    except SystemError as error:
        if error.__cause__ is not None:
            raise
        raise KeyboardInterrupt from error
    except KafkaException as error:
        raise from_kafka_error(error, what, addresses, otherwise=otherwise) from error
    except (TypeError, ValueError) as error:
        if isinstance(error, TidelogError):
            raise
        raise InvalidArgument(f"{what}: {error}") from error
