"""When a message of a queue is due, and when it expires: what ``Queue.send`` takes, and the headers that the broker reads.

Only Tidelog's queue topics know these headers; anywhere else such a message would be handed out at once, and for ever. So a queue
asks once whether its topic is one, before it sends the first.
"""

import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from tidelog.client.errors import InvalidArgument, NotSupported
from tidelog.client.producer import Headers
from tidelog.client.topic_partition import milliseconds_of
from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import check_code
from tidelog.wire.protocol import ApiKey

DUE_HEADER = "tidelog.due"
EXPIRES_HEADER = "tidelog.expires"
QUEUE_ENABLE = "tidelog.queue.enable"
QUEUE_TTL = "tidelog.queue.ttl.ms"
SECONDS_MAX = 10 * 366 * 86_400.0

_TOPIC_RESOURCE = 2
_NAMES = (QUEUE_ENABLE, "retention.ms", "cleanup.policy")


class MessageTimes(NamedTuple):
    """The headers of one message, and the arguments that they came from."""

    due_ms: int | None
    expires_ms: int | None
    argument: str

    @classmethod
    def of(cls, delay: float, at: int | datetime | None, ttl: float | None) -> "MessageTimes | None":
        """None for a message that is available at once and does not expire. InvalidArgument names the range."""
        _check_seconds("delay", delay, may_be_zero=True)
        if ttl is not None:
            _check_seconds("ttl", ttl, may_be_zero=False)
        if at is not None and delay:
            raise InvalidArgument(f"delay={delay!r} and at={at!r} contradict each other: pass one of them")
        now = time.time()
        # Rounded up, because a message must not be early.
        due_ms = math.ceil((now + delay) * 1000) if delay else None if at is None else milliseconds_of(at)
        if due_ms is None and ttl is None:
            return None
        expires_ms = None if ttl is None else math.floor((now * 1000 if due_ms is None else due_ms) + ttl * 1000)
        argument = f"delay={delay!r}" if delay else f"ttl={ttl!r}" if at is None else f"at={at!r}"
        return cls(due_ms, expires_ms, argument)

    def added_to(self, headers: Headers | None) -> list[tuple[str, bytes | str | None]]:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        if self.due_ms is not None:
            pairs.append((DUE_HEADER, str(self.due_ms)))
        if self.expires_ms is not None:
            pairs.append((EXPIRES_HEADER, str(self.expires_ms)))
        return pairs


class QueueTopic(NamedTuple):
    """A topic that keeps the times of messages."""

    name: str
    retention_ms: int | None
    """For how long it keeps messages; None if for ever."""

    @classmethod
    def find(cls, brokers: Brokers, name: str, what: str) -> "QueueTopic":
        """NotSupported if the topic is not one, with the reason why ``what`` is not possible."""
        resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": None}
        fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
        (found,) = brokers.patiently(lambda: brokers.request_any(ApiKey.DESCRIBE_CONFIGS, fields)).results
        check_code(found.error_code, f"the settings of topic {name}", found.error_message)
        values = {each.name: each.value for each in found.configs if each.name in _NAMES}
        if QUEUE_ENABLE not in values:
            raise NotSupported(
                f"queue {name}: {what} needs Tidelog. These brokers do not know the topic setting {QUEUE_ENABLE}: they hand out "
                "every message at once, and in no order"
            )
        if values[QUEUE_ENABLE] != "true":
            raise NotSupported(
                f"queue {name}: {what} needs a queue topic, and this is an ordinary one. To make it one: "
                f"tidelog queues create {name} --adopt"
            )
        retention_ms = int(values["retention.ms"] or -1)
        is_kept = retention_ms < 0 or "delete" not in (values["cleanup.policy"] or "")
        return cls(name, None if is_kept else retention_ms)

    def check(self, times: MessageTimes) -> None:
        """InvalidArgument for a message that the topic would delete before it is due."""
        if times.due_ms is None or self.retention_ms is None:
            return
        if times.due_ms - time.time() * 1000 >= self.retention_ms:
            raise InvalidArgument(
                f"{times.argument}: expected less than {self.retention_ms / 1000:g} seconds from now on, because {self.name} "
                "deletes messages after that time (retention.ms): raise it for later ones"
            )


def _check_seconds(name: str, value: float, *, may_be_zero: bool) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= SECONDS_MAX or (not value and not may_be_zero):
        first = "0" if may_be_zero else "more than 0"
        raise InvalidArgument(f"{name}={value!r}: expected a number of seconds from {first} to {SECONDS_MAX:.0f}")
