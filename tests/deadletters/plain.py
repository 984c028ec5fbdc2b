"""Dead letters that never saw a broker."""

from typing import Any

from tidelog.deadletters.dead_letter import DeadLetter
from tidelog.deadletters.letter import Letter

TOPIC = "orders.email.dlq"


def dead_letter(**fields: Any) -> DeadLetter:
    """``failed_ms``, ``error`` and ``group`` are of the story; everything else of the message."""
    story = Letter(
        topic="orders",
        partition=0,
        offset=17,
        timestamp_ms=1,
        group=fields.pop("group", "email"),
        attempts=6,
        first_failure_ms=0,
        last_failure_ms=fields.pop("failed_ms", 0),
        exception_class=fields.pop("error", "app.errors.OutOfStock"),
    )
    headers = story.to_headers([("a", b"1")])
    defaults = {
        "topic": TOPIC,
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 0,
        "key": None,
        "value": b"v",
        "headers": headers,
        "letter": story,
    }
    return DeadLetter(**{**defaults, **fields})
