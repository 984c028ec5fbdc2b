"""What a fetch gives up with, beside the errors of the whole toolkit: what is in a partition is not what was asked for."""

from tidelog.client.errors import TidelogError


class OffsetsLost(TidelogError):
    """The log begins after the wanted offset: what was before is deleted, by retention or by request."""

    def __init__(self, topic: str, partition: int, wanted: int, log_start: int) -> None:
        super().__init__(
            f"{topic}[{partition}]: offsets {wanted} to {log_start - 1} are lost: the log begins at {log_start} now "
            f"(retention or DeleteRecords removed them before they were read)"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.log_start = log_start

    def __reduce__(self) -> tuple[type["OffsetsLost"], tuple[str, int, int, int]]:
        """Tasks hand their errors on pickled, and an exception is otherwise rebuilt from its message."""
        return OffsetsLost, (self.topic, self.partition, self.wanted, self.log_start)


class OffsetsMissing(TidelogError):
    """The wanted offsets are not there and did not come in time: the log, or what is committed of it, ends before them."""


class TopicRecreated(TidelogError):
    """The topic of this name is another one than it was: its offsets mean something else."""


class BrokenBatch(TidelogError):
    """What the broker sent is no batch of records, or one that is larger than is allowed; names the offset."""
