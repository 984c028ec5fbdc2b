"""A partition that this worker has now, with all that is known of it, and the home that a source shares with its retry
partitions.

Nothing here is locked: only the thread that polls touches it, except ``is_stopping``, which handlers' threads read.
"""

from typing import TYPE_CHECKING

from tidelog.worker.blocked_keys import BlockedKeys
from tidelog.worker.offsets import PartitionOffsets
from tidelog.worker.parking import Parking
from tidelog.worker.retry_queue import RetryQueue

if TYPE_CHECKING:
    from tidelog.worker.job import Lane
    from tidelog.worker.route import Route

SOURCE_LEVEL = -1
# What a message takes beside its value: objects, key, headers.
MESSAGE_BYTES = 400


class Home:
    """One partition number of one source: the partition itself and the retry partitions of the same number."""

    __slots__ = ("blocked", "is_scanned", "is_whole", "parking", "partition", "source")

    def __init__(self, source: str, partition: int) -> None:
        self.source = source
        self.partition = partition
        self.blocked = BlockedKeys()
        self.parking = Parking()
        self.is_scanned = True
        """False while its blocked keys are not known yet: nothing of it may be begun."""
        self.is_whole = True
        """False while a letter of it would have nowhere to go: nothing of it may be begun. See ``partition_growth``."""


class Assigned:
    __slots__ = (
        "backlog",
        "backlog_bytes",
        "committed",
        "full_since_ms",
        "home",
        "is_closed",
        "is_paused",
        "is_stopping",
        "lane",
        "level",
        "offsets",
        "parked",
        "parked_bytes",
        "partition",
        "retries",
        "route",
        "topic",
    )

    def __init__(self, topic: str, partition: int, level: int, home: Home, route: "Route", offsets: PartitionOffsets) -> None:
        self.topic = topic
        self.partition = partition
        self.level = level
        """The backoff level of a retry partition, ``SOURCE_LEVEL`` of a source."""
        self.home = home
        self.route = route
        self.offsets = offsets
        self.lane: Lane | None = None
        """Of a partition whose messages are handled in its order."""
        self.retries = RetryQueue()
        self.committed: tuple[int | None, str] = (None, "")
        """What was last sent as its commit: position and metadata."""
        self.backlog = 0
        """Read and not finished."""
        self.backlog_bytes = 0
        self.parked = 0
        """Of these, how many wait in memory for an earlier message of their key."""
        self.parked_bytes = 0
        self.full_since_ms: int | None = None
        self.is_paused = False
        self.is_stopping = False
        """It is being taken away: nothing more of it is begun, what is under way still counts."""
        self.is_closed = False
        """It was taken away: what comes back of it is ignored."""

    @property
    def is_source(self) -> bool:
        return self.level == SOURCE_LEVEL

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
