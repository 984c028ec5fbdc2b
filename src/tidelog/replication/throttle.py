"""The limit on how fast new replicas are copied, so that moving partitions leaves room for clients.

A broker has two: one for what it sends as a leader (``leader.replication.throttled.rate``), one for what it copies as a follower
(``follower.replication.throttled.rate``). Each holds for the partitions that are listed for it in a topic's settings
(``leader.replication.throttled.replicas`` and its twin), and only while the follower is not in sync: as in Kafka, a throttle
never makes a replica fall out of the in-sync set. Unlike in Kafka, what replicas in sync copy is not counted either, so a rate
below that of the producers still lets a new replica have its whole share.

It is a bucket that holds one second's worth. A read is limited to what is in the bucket, but its first batch is sent whole,
and several partitions of one response are read before any is counted. So the bucket may go below zero; it is then closed until
time has paid the debt, and over any period no more flows than the rate allows, plus one second's worth and one response.
"""

from tidelog.config.types import LONG_MAX
from tidelog.ports.clock import Clock

UNLIMITED = LONG_MAX
_SECOND_MS = 1_000
# Who has to wait looks again after this time at the latest, because the rate may have changed.
WAIT_MS_MAX = 1_000


class ReplicationThrottle:
    __slots__ = ("_balance", "_clock", "_counted_until_ms", "rate", "throttled_bytes")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.rate = UNLIMITED
        """Bytes per second."""
        # A thousandth of a byte is what a rate of one byte per second gives in a millisecond: everything is an integer.
        self._balance = 0
        self._counted_until_ms = clock.monotonic_ms()
        self.throttled_bytes = 0
        """What has passed while there was a limit."""

    @property
    def is_limited(self) -> bool:
        return self.rate < UNLIMITED

    def change_rate(self, rate: int) -> None:
        if rate != self.rate:
            self._refill()
            debt = min(0, self._balance) if self.is_limited else 0
            self.rate = rate
            self._balance = debt or rate * _SECOND_MS

    def available(self) -> int:
        """How many bytes may pass now."""
        if not self.is_limited:
            return UNLIMITED
        self._refill()
        return max(0, self._balance // _SECOND_MS)

    def record(self, byte_count: int) -> None:
        if self.is_limited:
            self._balance -= byte_count * _SECOND_MS
            self.throttled_bytes += byte_count

    def wait_ms(self) -> int:
        """How long to wait until something may pass; 0 if it may now."""
        if self.available():
            return 0
        if not self.rate:
            return WAIT_MS_MAX
        return min(WAIT_MS_MAX, (_SECOND_MS - self._balance) // self.rate + 1)

    def _refill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self.is_limited:
            self._balance = min(self.rate * _SECOND_MS, self._balance + self.rate * (now_ms - self._counted_until_ms))
        self._counted_until_ms = now_ms
