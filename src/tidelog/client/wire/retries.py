"""The retry policy: which errors are worth another attempt, with growing pauses until a deadline."""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tidelog.client.wire.errors import (
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    RequestTimedOut,
    UnknownPartition,
)

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
# Brokers learn of a new topic one after the other. A topic that stays unknown for this long does not exist.
UNKNOWN_TOPIC_SECONDS = 2.0

_Result = TypeVar("_Result")


def is_retriable(error: ClientError) -> bool:
    """Whether a request that changes nothing may be repeated on the same broker."""
    if isinstance(error, BrokerError):
        return error.code.is_retriable
    return isinstance(error, ConnectionLost)


def is_worth_another_broker(error: ClientError) -> bool:
    """Whether the request may be repeated when the brokers are looked up again before each attempt."""
    return is_retriable(error) or isinstance(error, BrokerUnreachable)


def is_worth_another_attempt(error: ClientError) -> bool:
    """Whether a request that may be executed twice without harm may be repeated."""
    return is_worth_another_broker(error) or isinstance(error, RequestTimedOut)


def retried(
    attempt: Callable[[], _Result], seconds_max: float, may_retry: Callable[[ClientError], bool] = is_retriable
) -> _Result:
    """The result of ``attempt``. Raises its last error if no attempt succeeds by the deadline."""
    deadline = time.monotonic() + seconds_max
    pause_seconds = PAUSE_SECONDS_MIN
    while True:
        try:
            return attempt()
        except ClientError as error:
            if not may_retry(error) or time.monotonic() + pause_seconds > deadline:
                raise
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)


def retried_while_unknown(attempt: Callable[[], _Result]) -> Callable[[], _Result]:
    """``attempt``, repeated for a short time while it raises UnknownPartition: the topic may have just been created."""
    return partial(retried, attempt, UNKNOWN_TOPIC_SECONDS, lambda error: isinstance(error, UnknownPartition))
