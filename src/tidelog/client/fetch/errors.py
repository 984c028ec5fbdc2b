"""The errors of a fetch beyond those of the whole toolkit: the partition does not have what the caller asked for."""

from tidelog.client.errors import TidelogError


class OffsetsLost(TidelogError):
    """The log begins after the wanted offset: retention or a request has deleted what was before."""

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
        """Spark pickles the errors of its tasks, and by default an exception is rebuilt from its message alone."""
        return OffsetsLost, (self.topic, self.partition, self.wanted, self.log_start)


class OffsetsMissing(TidelogError):
    """The wanted offsets did not appear in time: the log, or its committed part, ends before them."""


class TopicRecreated(TidelogError):
    """Another topic has this name now, so the offsets mean something else."""


class BrokenBatch(TidelogError):
    """The broker sent something that is not a valid batch of records, or one that is too large. The message names the offset."""
