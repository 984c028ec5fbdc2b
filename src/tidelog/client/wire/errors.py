"""The exceptions of our own connection. Each message is one line, written for the person who made the call.

``check_code`` turns an error code of the protocol into a ``BrokerError``; ``toolkit_errors`` turns all of these into the errors
of the toolkit, for callers who promise those.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError

from tidelog.client.errors import (
    BrokerUnavailable,
    InvalidArgument,
    NotAuthorized,
    TidelogError,
    TimedOut,
    UnknownTopic,
    from_kafka_error,
)
from tidelog.wire.errors import ErrorCode


class ClientError(Exception):
    """The call failed."""


class InvalidAddress(ClientError):
    """The bootstrap servers are not a list of ``host:port`` separated by commas."""


class BrokerUnreachable(ClientError):
    """Nothing accepts a connection at that address."""


class ConnectionLost(ClientError):
    """The connection ended before the answer arrived. The request may or may not have been executed."""


class RequestTimedOut(ClientError):
    """No answer arrived in time. The request may or may not have been executed."""


class SecurityRequired(ClientError):
    """The broker requires TLS or SASL."""


class UnsupportedByBroker(ClientError):
    """The broker and this client have no version of the API in common."""


class InvalidAnswer(ClientError):
    """The response does not follow Kafka's protocol."""


class UnknownPartition(ClientError):
    """The cluster has no such topic or partition."""

    def __init__(self, topic: str, partition: int | None = None) -> None:
        super().__init__(f"there is no topic {topic}" if partition is None else f"there is no partition {topic}-{partition}")


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, code: int, subject: str, detail: str | None = None) -> None:
        self.code = error_of(code)
        words = detail or self.code.message
        super().__init__(f"{subject}: {words} ({self.code.name})" if code == self.code else f"{subject}: error code {code}")


def error_of(code: int) -> ErrorCode:
    """Return the error of a code. A code that is newer than our table counts as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check_code(code: int, subject: str, detail: str | None = None) -> None:
    """Raise BrokerError unless ``code`` is NONE. ``detail`` is the broker's own message, where the response has one."""
    if code != ErrorCode.NONE:
        raise BrokerError(code, subject, detail)


_TOOLKIT_ERRORS: tuple[tuple[type[ClientError], type[TidelogError], str], ...] = (
    (BrokerUnreachable, BrokerUnavailable, "check the address and that the broker runs"),
    (ConnectionLost, BrokerUnavailable, "check that the broker runs"),
    (RequestTimedOut, TimedOut, "try again, or allow more time with socket.timeout.ms"),
    (InvalidAddress, InvalidArgument, "bootstrap servers are host:port, separated by commas"),
    (UnknownPartition, UnknownTopic, "create it first: admin.create_topic(...)"),
    (SecurityRequired, NotAuthorized, "give security.protocol, and what it needs, in the settings"),
)


@contextmanager
def toolkit_errors(what: str, addresses: str) -> Iterator[None]:
    """Raise the errors of the connection as those of the toolkit. ``what`` says what was being done ("offsets of orders")."""
    try:
        yield
    except ClientError as error:
        raise as_tidelog_error(error, what, addresses) from error


def as_tidelog_error(error: ClientError, what: str, addresses: str) -> TidelogError:
    if isinstance(error, BrokerError):
        return from_kafka_error(KafkaError(int(error.code)), what, addresses)
    for kind, ours, advice in _TOOLKIT_ERRORS:
        if isinstance(error, kind):
            return ours(f"{what}: {error}: {advice}")
    return TidelogError(f"{what}: {error}")
