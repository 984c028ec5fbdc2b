"""Counts what this controller has decided about partitions: elections, and in-sync sets that shrank and grew.

An election shows in its record: a partition gets a leader. It was unclean if the record also says that the leader has to recover;
then this says what may be lost. Changes are found before their records are committed, while the image still tells who had the
data, and are counted after.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.controller.election import RECOVERING
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER, NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from tidelog.metadata.topics import PartitionImage


@dataclass(frozen=True, slots=True)
class DecidedChange:
    partition_name: str
    before: PartitionImage
    record: PartitionChangeRecord

    @property
    def is_election(self) -> bool:
        return self.record.leader not in (NO_LEADER, NO_LEADER_CHANGE)

    @property
    def is_unclean(self) -> bool:
        return self.is_election and self.record.leader_recovery_state == RECOVERING

    @property
    def joined(self) -> set[int]:
        return set(self.record.isr or ()) - set(self.before.isr)

    @property
    def left(self) -> set[int]:
        return set(self.before.isr) - set(self.record.isr) if self.record.isr is not None else set()

    def loss(self) -> dict[str, object]:
        """Describe the records that an unclean election may lose, as far as the controller knows them."""
        before, leader = self.before, self.record.leader
        had_everything = {*before.isr, *before.eligible_leader_replicas, *before.last_known_elr} - {leader}
        holders = [replica for replica in before.replicas if replica in had_everything]
        return {
            "partition": self.partition_name,
            "leader": leader,
            "leader_epoch_before": before.leader_epoch,
            "had_every_record": holders,
            "may_be_lost": f"acknowledged records that broker {leader} does not have, after its log end offset",
        }


class PartitionChangeCounts:
    __slots__ = ("clean_elections", "isr_expansions", "isr_shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.clean_elections = 0
        self.unclean_elections = 0
        self.isr_shrinks = 0
        self.isr_expansions = 0

    def find(self, image: ClusterImage, records: Sequence[MetadataRecord]) -> list[DecidedChange]:
        """The changes among records that are about to be written."""
        found = []
        for record in records:
            if not isinstance(record, PartitionChangeRecord):
                continue
            topic = image.topic_by_id(record.topic_id)
            before = topic.partitions.get(record.partition_id) if topic is not None else None
            if topic is not None and before is not None:
                found.append(DecidedChange(f"{topic.name}-{record.partition_id}", before, record))
        return found

    def count(self, changes: Sequence[DecidedChange]) -> list[dict[str, object]]:
        """Count changes whose records were committed. Returns what each unclean election may lose."""
        losses = [change.loss() for change in changes if change.is_unclean]
        self.unclean_elections += len(losses)
        self.clean_elections += sum(change.is_election for change in changes) - len(losses)
        self.isr_shrinks += sum(bool(change.left) for change in changes)
        self.isr_expansions += sum(bool(change.joined) for change in changes)
        return losses
