"""Trying again: with growing pauses, until a deadline, and only where that helps."""

import time
from collections.abc import Callable
from typing import TypeVar

from tidelog.client.transactions.errors import BrokerError, BrokerUnreachable, ClientError, ConnectionLost

PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0

_Result = TypeVar("_Result")


def is_retriable(error: ClientError) -> bool:
    """For requests that change nothing."""
    if isinstance(error, BrokerError):
        return error.code.is_retriable
    return isinstance(error, ConnectionLost)


def is_worth_another_broker(error: ClientError) -> bool:
    """Likewise, when brokers may have changed meanwhile."""
    return is_retriable(error) or isinstance(error, BrokerUnreachable)


def retried(
    attempt: Callable[[], _Result], seconds_max: float, may_retry: Callable[[ClientError], bool] = is_retriable
) -> _Result:
    """What ``attempt`` gives; its last error, when there was none by the deadline."""
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
