"""What the toolkit gives up with: a class per thing that callers treat differently, in one sentence that says what to do.

Everything that a user's input, network or cluster can cause is a ``TidelogError``; anything else is a bug of ours. ``retriable``
says whether doing the same again, later, can help. ``code`` is the error code of Kafka (positive) or of librdkafka (negative)
where one was behind it. ``from_kafka_error`` is the one place where librdkafka's errors become ours.
"""

from typing import Any

from confluent_kafka import KafkaError


class TidelogError(Exception):
    """The base of all errors of the toolkit.

    ``retriable``: the same call may succeed later. ``code``: Kafka's or librdkafka's error code, None where none was behind it.
    """

    retriable: bool = False
    code: int | None = None
    is_seen: bool = False
    """Whether the application was told of this failed message; ``flush`` raises what it was not told of."""

    def __init__(self, message: str, *, code: int | None = None, retriable: bool | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
        if retriable is not None:
            self.retriable = retriable


class InvalidArgument(TidelogError, ValueError):
    """The call makes no sense as it is: a wrong value, a wrong combination, a setting that would break a promise."""


class Closed(TidelogError):
    """The producer, consumer, table or worker was closed before."""


class BrokerUnavailable(TidelogError):
    """No broker answers at the addresses that the message names."""

    retriable = True


class TimedOut(TidelogError):
    """There was no answer in time; whether the request was done is not known."""

    retriable = True


class NotAuthorized(TidelogError):
    """The cluster does not let this user do that."""


class UnknownTopic(TidelogError):
    """There is no such topic or partition."""


class TopicExists(TidelogError):
    """A topic of that name is there already."""


class InvalidTopic(TidelogError):
    """The topic's name, partition count or settings are refused by the cluster."""


class SerializationError(TidelogError):
    """The value or key cannot become bytes; names the type and the topic."""


class MessageTooLarge(TidelogError):
    """The message is larger than the producer or the topic allows."""


class BufferFull(TidelogError):
    """The producer's buffer stayed full for ``max_block_ms``: messages come faster than the cluster takes them."""

    retriable = True


class Shed(BufferFull):
    """The buffer was full and the topic is marked as low-value: this message was dropped, and counted."""


class DeliveryFailed(TidelogError):
    """The message was not acknowledged; a later attempt may be a second copy unless the error says that it was not written."""


class Fenced(TidelogError):
    """Another instance with the same id took over: this one must stop, what it had not committed is void."""


class TransactionFailed(TidelogError):
    """The transaction was aborted: nothing of it will be seen. Doing all of it again may succeed."""

    retriable = True


class TransactionFatal(TidelogError):
    """The producer cannot go on with transactions: close it and open a new one with the same transactional id."""


class TransactionOutcomeUnknown(TransactionFatal):
    """The commit was asked for and not answered: the transaction is either whole or void, and a new producer settles which."""


class GroupError(TidelogError):
    """The consumer group refused: not a member any more, a rebalance under way, members that are still there."""


_UNREACHABLE = frozenset((KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._SSL))

# A leader moves, a coordinator loads, a log is being opened or deleted: the broker wants to be asked again.
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
    KafkaError.TOPIC_ALREADY_EXISTS: (TopicExists, "pass exists_ok=True if that is fine"),
    KafkaError.TOPIC_EXCEPTION: (InvalidTopic, "names have up to 249 of the characters a-z A-Z 0-9 . _ -"),
    KafkaError.INVALID_PARTITIONS: (InvalidTopic, "partitions can be added to, not taken away, and there is at least one"),
    KafkaError.INVALID_REPLICATION_FACTOR: (InvalidTopic, "there are not that many brokers"),
    KafkaError.INVALID_CONFIG: (InvalidTopic, "see the settings' names and ranges"),
    KafkaError.POLICY_VIOLATION: (InvalidTopic, "the cluster's policy refuses it: ask who runs it"),
    KafkaError.MSG_SIZE_TOO_LARGE: (MessageTooLarge, "raise max.message.bytes of the topic, or send a reference to the data"),
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
    KafkaError.UNKNOWN_MEMBER_ID: (GroupError, "the member was removed from its group: poll again to join"),
    KafkaError.ILLEGAL_GENERATION: (GroupError, "the group has rebalanced since: poll again"),
    KafkaError.STALE_MEMBER_EPOCH: (GroupError, "the group has rebalanced since: poll again"),
    KafkaError.REBALANCE_IN_PROGRESS: (GroupError, "try again when the rebalance is over"),
    KafkaError.NON_EMPTY_GROUP: (GroupError, "stop the group's members first"),
    KafkaError.GROUP_ID_NOT_FOUND: (GroupError, "there is no group of that name"),
    KafkaError.GROUP_SUBSCRIBED_TO_TOPIC: (GroupError, "stop the members that read the topic first"),
    KafkaError._INVALID_ARG: (InvalidArgument, "see the documentation of the call"),
    KafkaError._STATE: (InvalidArgument, "the call does not fit what was done before"),
}


def from_kafka_error(error: Any, what: str, addresses: str, *, otherwise: type[TidelogError] = TidelogError) -> TidelogError:
    """``error`` (a confluent_kafka.KafkaError) as one of ours. ``what`` is what was being done ("send to orders"),
    ``addresses`` the bootstrap servers. ``otherwise`` is the class of what stands in no table here."""
    code: int = error.code()
    if code in _UNREACHABLE:
        return BrokerUnavailable(
            f"{what}: no broker answers at {addresses} ({error.str()}): check the address and that the broker runs", code=code
        )
    kind, advice = _CLASSES.get(code, (otherwise, ""))
    sentence = f"{what}: {error.str()} ({error.name()})"
    # librdkafka says it of some calls only.
    retriable = kind.retriable or code in _PASSING or bool(error.retriable())
    return kind(f"{sentence}: {advice}" if advice else sentence, code=code, retriable=retriable)
