"""What a call gives up with. Each message is one line, written for the person who made the call."""

from tidelog.wire.errors import ErrorCode


class ClientError(Exception):
    """The call could not be done."""


class InvalidAddress(ClientError):
    """The bootstrap servers are not ``host:port``, with commas between them."""


class BrokerUnreachable(ClientError):
    """Nobody accepts a connection there."""


class ConnectionLost(ClientError):
    """The connection ended before the answer came; whether the request was done is not known."""


class RequestTimedOut(ClientError):
    """No answer in time; whether the request was done is not known."""


class SecurityRequired(ClientError):
    """The broker wants TLS or SASL."""


class UnsupportedByBroker(ClientError):
    """The broker has no version of the API that we have too."""


class InvalidAnswer(ClientError):
    """What came back is not an answer of Kafka's protocol."""


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
    """A code that is newer than our table is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
