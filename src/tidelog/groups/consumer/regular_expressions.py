"""Subscriptions by regular expression, matched here and not in the client.

Expressions come from anybody, so they go to RE2: it matches in time linear in the text, and refuses what it cannot do so. What an
expression matches is kept in the log, and looked up again when topics came or went; not more often than the work is worth.
"""

from collections.abc import Iterable
from typing import Any

from tidelog.controller.errors import ApiError
from tidelog.groups.records import ConsumerGroupRegularExpressionValue
from tidelog.metadata.image import ClusterImage
from tidelog.wire.errors import ErrorCode

# RE2 needs about 2 us for a name: with these, one group's expressions take at most a few thousandths of the time.
REFRESH_MS_MIN = 1_000
REFRESH_MS_PER_TOPIC = 1


def refresh_interval_ms(image: ClusterImage) -> int:
    """How long what was looked up is good enough, though topics may have come since."""
    return max(REFRESH_MS_MIN, len(image.topics) * REFRESH_MS_PER_TOPIC)


def check_regex(regex: str) -> None:
    _compile(regex)


def resolve(regexes: Iterable[str], image: ClusterImage, now_ms: int) -> dict[str, ConsumerGroupRegularExpressionValue]:
    """The topics whose whole name matches, in order."""
    names = sorted([topic.name for topic in image.topics])
    resolved = {}
    for regex in regexes:
        matches = _compile(regex).fullmatch
        topics = tuple([name for name in names if matches(name)])
        resolved[regex] = ConsumerGroupRegularExpressionValue(topics, image.last_offset, now_ms)
    return resolved


def _compile(regex: str) -> Any:
    import re2  # Here, for it takes 20 ms that few brokers need.

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None
    except UnicodeEncodeError:
        message = f"SubscribedTopicRegex `{regex!r}` is not a valid regular expression: it is not valid text."
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None
