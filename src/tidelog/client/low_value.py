"""Topics whose messages may be dropped when the buffer is full, instead of making the application wait: metrics, traces, clicks.

``"shed"`` drops every message that finds the buffer full; a fraction keeps that part of them, which then wait as others do.
What is dropped is counted, and its delivery says so: nothing is dropped silently.
"""

import random
import threading
from collections.abc import Mapping

from tidelog.client.errors import InvalidArgument


class LowValueTopics:
    """Which topics they are, and how many messages were dropped of them."""

    __slots__ = ("_fractions", "_lock", "sampled", "shed")

    def __init__(self, topics: Mapping[str, str | float] | None) -> None:
        # The part that is kept; none of "shed".
        self._fractions: dict[str, float] = {}
        self._lock = threading.Lock()
        self.shed = 0
        self.sampled = 0
        for topic, rule in (topics or {}).items():
            is_fraction = isinstance(rule, int | float) and not isinstance(rule, bool) and 0 < rule < 1
            if rule != "shed" and not is_fraction:
                raise InvalidArgument(
                    f'low_value_topics: {topic} is "shed", or the fraction to keep, between 0 and 1: not {rule!r}'
                )
            self._fractions[topic] = 0.0 if isinstance(rule, str) else float(rule)

    def drops(self, topic: str) -> bool:
        """Whether this message, which found the buffer full, is dropped; counts it."""
        fraction = self._fractions.get(topic)
        if fraction is None or (fraction and random.random() < fraction):  # noqa: S311 - no secret
            return False
        with self._lock:
            if fraction:
                self.sampled += 1
            else:
                self.shed += 1
        return True
