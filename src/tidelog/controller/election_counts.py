"""Counts the elections that this controller has decided, and says what an unclean one may lose.

An election shows in its record: a partition gets a leader. It was unclean if the record also says that the leader has to recover.
Elections are found before their records are committed, while the image still tells who had the data, and are counted after.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.controller.election import RECOVERING
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage


@dataclass(frozen=True, slots=True)
class DecidedElection:
    partition_name: str
    leader: int
    before: PartitionImage
    is_unclean: bool

    def loss(self) -> dict[str, object]:
        """What is known about the records that an unclean election may lose."""
        before = self.before
        had_everything = {*before.isr, *before.eligible_leader_replicas, *before.last_known_elr} - {self.leader}
        holders = [replica for replica in before.replicas if replica in had_everything]
        return {
            "partition": self.partition_name,
            "leader": self.leader,
            "leader_epoch_before": before.leader_epoch,
            "had_every_record": holders,
            "may_be_lost": f"acknowledged records that broker {self.leader} does not have, after its log end offset",
        }


class ElectionCounts:
    __slots__ = ("clean", "unclean")

    def __init__(self) -> None:
        self.clean = 0
        self.unclean = 0

    def find(self, image: ClusterImage, records: Sequence[MetadataRecord]) -> list[DecidedElection]:
        """The elections among records that are about to be written."""
        found = []
        for record in records:
            if not isinstance(record, PartitionChangeRecord) or record.leader in (NO_LEADER, NO_LEADER_CHANGE):
                continue
            topic = image.topic_by_id(record.topic_id)
            before = topic.partitions.get(record.partition_id) if topic is not None else None
            if topic is not None and before is not None:
                name, is_unclean = f"{topic.name}-{record.partition_id}", record.leader_recovery_state == RECOVERING
                found.append(DecidedElection(name, record.leader, before, is_unclean))
        return found

    def count(self, elected: Sequence[DecidedElection]) -> list[dict[str, object]]:
        """Count elections whose records were committed. Returns what each unclean one may lose."""
        losses = [election.loss() for election in elected if election.is_unclean]
        self.unclean += len(losses)
        self.clean += len(elected) - len(losses)
        return losses
