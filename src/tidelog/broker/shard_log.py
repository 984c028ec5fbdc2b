"""A partition as the log of a coordinator's shard."""

from tidelog.coordinator.machine import OnCommitted
from tidelog.log.append_check import AppendOrigin
from tidelog.log.reading import Isolation, LogSlice, read
from tidelog.ports.disk import Buffer
from tidelog.replication.partition import Partition


class PartitionShardLog:
    """``tidelog.coordinator.machine.ShardLog`` on a partition that this broker leads."""

    __slots__ = ("partition",)

    def __init__(self, partition: Partition) -> None:
        self.partition = partition

    @property
    def start_offset(self) -> int:
        return self.partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def committed_offset(self) -> int:
        return self.partition.log.high_watermark

    @property
    def batch_bytes_max(self) -> int:
        return self.partition.log.settings.message_bytes_max

    def append(self, batch: Buffer) -> int:
        partition = self.partition
        if partition.closed_by is not None:
            raise partition.closed_by
        return partition.append(batch, True, AppendOrigin.COORDINATOR).first_offset

    def wait_committed(self, end_offset: int, on_committed: OnCommitted) -> None:
        partition = self.partition
        if partition.closed_by is not None:
            on_committed(partition.closed_by)
        else:
            partition.wait_replicated(end_offset, on_committed)

    def read(self, offset: int, bytes_max: int) -> LogSlice | None:
        if self.partition.closed_by is not None:
            raise self.partition.closed_by
        return read(self.partition.log, offset, bytes_max, Isolation.LOG_END).records
