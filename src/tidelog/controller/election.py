"""Elects leaders: when brokers come and go, and on request.

Every decision is a pure function of the image and an event, and yields ``PartitionChangeRecord``s. What it may elect depends on
two sets of a partition (KIP-966):

- The in-sync set (ISR). Its members have everything below the high watermark.
- The eligible leader replicas (ELR). These left the ISR when that was, or became, smaller than the effective
  ``min.insync.replicas``. The high watermark has not moved since, so they have everything below it, too. Once the ISR is large
  enough again, the high watermark moves on without them, and they are no longer eligible.

A clean election takes an active member of the ISR, in the order of the replicas, or, if the ISR is empty, one of the ELR. If
there is none, the partition has no leader (-1), and ``last_known_elr`` keeps the id of the last one. An election from outside
both sets is *unclean*: the records that the new leader lacks are lost. It happens only

- if the topic's ``unclean.leader.election.enable`` asks for it, or an operator does (ElectLeaders), or
- if both sets are empty and the last known leader returns: on a topic with relaxed durability (``flush.messages`` above 1), a
  crash removes a broker from both sets, because nobody knows what its page cache held. If every replica crashed, there is nothing
  better than what the last leader has.

Unclean elections are returned to the caller, who counts and reports them.

A partition that moves (``controller.reassignment``) has the brokers of both assignments as replicas. Whatever changes such a
partition also completes the move, once all added replicas are in sync and those that stay are enough for the effective
``min.insync.replicas``. Until then the added replicas do not count towards that minimum: a partition with one replica stays
writable while it is copied.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.errors import ApiError
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    NO_RECOVERY_STATE_CHANGE,
    BrokerIds,
    Ids,
    MetadataRecord,
    PartitionChangeRecord,
)
from tidelog.metadata.topics import PartitionImage, TopicImage
from tidelog.records.topic_partition import TopicPartition
from tidelog.wire.errors import ErrorCode

NO_DIRECTORY = bytes(16)
RECOVERED = 0
RECOVERING = 1

# Preferred elections of one decision; more would hold up the controller, and clients that all look for new leaders at once.
REBALANCED_PARTITIONS_MAX = 1_000


class ElectionType(IntEnum):
    """The types of ElectLeaders, and ``ONLINE``, which keeps the leader if it may stay."""

    PREFERRED = 0
    UNCLEAN = 1
    ONLINE = 2


class TopicElectionRules(Protocol):
    """The settings of topics that elections depend on."""

    def min_insync_replicas(self, topic: str) -> int: ...

    def allows_unclean_election(self, topic: str) -> bool: ...

    def is_relaxed(self, topic: str) -> bool:
        """Whether a crash can lose records of this topic that were visible."""
        ...


@dataclass(frozen=True, slots=True)
class Election:
    """A leader that was elected; -1 if nobody could be."""

    topic: str
    partition: int
    leader_before: int
    leader: int
    is_unclean: bool


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    records: list[PartitionChangeRecord] = field(default_factory=list)
    elections: list[Election] = field(default_factory=list)

    def add(self, other: "ElectionOutcome") -> None:
        self.records.extend(other.records)
        self.elections.extend(other.elections)


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def effective_min_insync(minimum: int, replicas: BrokerIds) -> int:
    """``min.insync.replicas`` cannot ask for more replicas than a partition has."""
    return min(minimum, len(replicas))


class ReplicaAssignment(NamedTuple):
    """The brokers that hold a partition, of both assignments while it moves."""

    replicas: BrokerIds
    """The new assignment in order of preference, then those that leave."""
    adding: BrokerIds = ()
    removing: BrokerIds = ()

    @property
    def settled(self) -> BrokerIds:
        """The replicas from before the move. Only these count towards ``min.insync.replicas``."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> BrokerIds:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


def replicas_of(partition: PartitionImage) -> ReplicaAssignment:
    return ReplicaAssignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)


# -- one partition -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A change of one partition that is being decided: what is wanted, and who may lead."""

    topic: TopicImage
    index: int
    is_acceptable: Callable[[int], bool]
    """Whether a broker may lead: whether it is active, or is about to be."""
    min_insync_replicas: int
    isr: BrokerIds
    """The wanted in-sync set. Who leaves it may become eligible."""
    election_type: ElectionType = ElectionType.ONLINE
    crashed: BrokerIds = ()
    """Brokers that may have lost the latest records in a crash: they are neither in sync nor eligible."""
    gone: BrokerIds = ()
    """Brokers that do not have the partition's data any more. They cannot lead as the last known leader either."""
    leader_recovery_state: int = NO_RECOVERY_STATE_CHANGE
    assignment: ReplicaAssignment | None = None
    """The wanted replicas; None leaves them as they are."""
    new_directories: Mapping[int, bytes] = field(default_factory=dict)
    """The log directories of brokers that become replicas, where they are known."""

    @property
    def before(self) -> PartitionImage:
        return self.topic.partitions[self.index]

    def decide(self) -> ElectionOutcome:
        """Return the record of the change, if anything changes, and the election, if the leader does."""
        before = self.before
        isr = tuple(replica for replica in self.isr if replica not in self.crashed and replica not in self.gone)
        assignment = self._assignment(isr)
        isr = tuple(replica for replica in isr if replica in assignment.replicas)
        eligible = self._eligible(isr, assignment)
        leader, is_unclean = self._elect(isr, eligible, assignment.replicas)
        recovery_state = self.leader_recovery_state
        if is_unclean:
            isr, eligible, recovery_state = (leader,), (), RECOVERING
        elif leader not in isr and leader != NO_LEADER:
            # By this set, because the minimum may be lower than when the others became eligible: if the new leader alone is
            # enough, it acknowledges what they lack.
            isr = (leader,)
            eligible = self._eligible(isr, assignment)
        last_known = self._last_known() if leader == NO_LEADER else ()
        record = PartitionChangeRecord(
            self.index,
            self.topic.topic_id,
            isr=isr if isr != before.isr else None,
            leader=leader if leader != before.leader else NO_LEADER_CHANGE,
            leader_recovery_state=(
                recovery_state if recovery_state != before.leader_recovery_state else NO_RECOVERY_STATE_CHANGE
            ),
            eligible_leader_replicas=eligible if eligible != before.eligible_leader_replicas else None,
            last_known_elr=last_known if last_known != before.last_known_elr else None,
        )
        if assignment != replicas_of(before):
            record = replace(
                record,
                replicas=assignment.replicas,
                adding_replicas=assignment.adding,
                removing_replicas=assignment.removing,
                directories=self._directories(assignment.replicas),
            )
        outcome = ElectionOutcome()
        if record != PartitionChangeRecord(self.index, self.topic.topic_id):
            outcome.records.append(record)
        if leader != before.leader:
            outcome.elections.append(Election(self.topic.name, self.index, before.leader, leader, is_unclean))
        return outcome

    def _assignment(self, isr: BrokerIds) -> ReplicaAssignment:
        """The replicas after the change. A move is complete when every added replica is in sync, and those that stay can go on
        without the others: enough of them are in sync, and one of them may lead."""
        assignment = self.assignment or replicas_of(self.before)
        target = assignment.target
        staying = [replica for replica in isr if replica in target]
        is_complete = (
            assignment.is_moving
            and set(assignment.adding) <= set(staying)
            and len(staying) >= effective_min_insync(self.min_insync_replicas, target)
            and any(self.is_acceptable(replica) for replica in staying)
        )
        return ReplicaAssignment(target) if is_complete else assignment

    def _directories(self, replicas: BrokerIds) -> Ids:
        before = self.before
        known = {**self.new_directories, **dict(zip(before.replicas, before.directories, strict=False))}
        return tuple(known.get(replica, NO_DIRECTORY) for replica in replicas)

    def _last_known(self) -> BrokerIds:
        before = self.before
        last_known = (before.leader,) if before.leader != NO_LEADER else before.last_known_elr
        return tuple(replica for replica in last_known if replica not in self.gone)

    def _eligible(self, isr: BrokerIds, assignment: ReplicaAssignment) -> BrokerIds:
        before = self.before
        if len(isr) >= effective_min_insync(self.min_insync_replicas, assignment.settled):
            return ()
        had_everything = {*before.eligible_leader_replicas, *before.isr} - {*isr, *self.crashed, *self.gone}
        return tuple(replica for replica in assignment.replicas if replica in had_everything)

    def _elect(self, isr: BrokerIds, eligible: BrokerIds, replicas: BrokerIds) -> tuple[int, bool]:
        """Return the leader, and whether it is elected uncleanly."""
        before = self.before
        candidates = [replica for replica in replicas if replica in (isr or eligible) and self.is_acceptable(replica)]
        if candidates:
            may_stay = before.leader in candidates
            if self.election_type is ElectionType.PREFERRED and replicas[0] in candidates:
                return replicas[0], False
            return (before.leader if may_stay else candidates[0]), False
        last_known = before.last_known_elr
        if not isr and not eligible and len(last_known) == 1 and self.is_acceptable(last_known[0]) and last_known[0] in replicas:
            return last_known[0], True
        if self.election_type is ElectionType.UNCLEAN:
            for replica in (*last_known, *replicas):
                if replica in replicas and self.is_acceptable(replica):
                    return replica, True
        return NO_LEADER, False


# -- brokers come and go -----------------------------------------------------------------------------------------------------


def broker_left(image: ClusterImage, rules: TopicElectionRules, broker_id: int) -> ElectionOutcome:
    """A broker is being fenced, shut down in a controlled way, or unregistered: it leaves every in-sync set, and others lead. The
    caller adds the record that says so."""
    outcome = ElectionOutcome()
    for topic in image.topics:
        for index, partition in topic.partitions.items():
            if broker_id in partition.isr or broker_id == partition.leader:
                outcome.add(_change(image, rules, topic, index, without=broker_id).decide())
    return outcome


class DataCondition(IntEnum):
    """What a broker that registers can say about its data."""

    STOPPED_IN_ORDER = 0
    CRASHED = 1
    OLDER_COPY = 2
    """The data is not what the broker's last process left, for example because a backup was restored."""


def broker_registered(
    image: ClusterImage, rules: TopicElectionRules, broker_id: int, log_dirs: Ids, condition: DataCondition
) -> ElectionOutcome:
    """A broker has started and registers, fenced at first, with these log directories.

    After a crash, its data is as good as before on topics where durable means synced: recovery has proved the log up to its
    durable mark. On topics with relaxed durability, nobody knows what was lost, so the broker leaves both sets there. (If it
    leads again, it does so in a new epoch, which is how readers find out: KIP-320.) It also leaves both sets where its data is an
    older copy, or was in another log directory.

    Where the broker is the only replica and its data is in place, nobody else could lead: it stays, and only a crash that may
    have lost records begins a new epoch. Everywhere else nothing changes, because a record for each partition would make the
    metadata log grow with every start."""
    outcome = ElectionOutcome()
    for topic in image.topics:
        has_crashed = condition is DataCondition.CRASHED and rules.is_relaxed(topic.name)
        for index, partition in topic.partitions.items():
            is_in_sync = broker_id in partition.isr
            if not is_in_sync and broker_id not in partition.eligible_leader_replicas:
                continue
            is_gone = condition is DataCondition.OLDER_COPY or _directory_of(partition, broker_id) not in (
                NO_DIRECTORY,
                *log_dirs,
            )
            if partition.replicas == (broker_id,) and not is_gone:
                if has_crashed and partition.leader == broker_id:
                    outcome.records.append(PartitionChangeRecord(index, topic.topic_id, leader=broker_id))
            elif has_crashed or is_gone or is_in_sync:
                change = _change(image, rules, topic, index, without=broker_id)
                crashed, gone = (broker_id,) if has_crashed else (), (broker_id,) if is_gone else ()
                outcome.add(replace(change, crashed=crashed, gone=gone).decide())
    return outcome


def _directory_of(partition: PartitionImage, broker_id: int) -> bytes:
    directories = dict(zip(partition.replicas, partition.directories, strict=False))
    return directories.get(broker_id, NO_DIRECTORY)


def broker_returned(image: ClusterImage, rules: TopicElectionRules, broker_id: int) -> ElectionOutcome:
    """A broker is being unfenced: it may lead partitions that have no leader. The caller adds the record that says so."""
    outcome = ElectionOutcome()
    for topic in image.topics:
        for index, partition in topic.partitions.items():
            if partition.leader == NO_LEADER and broker_id in partition.replicas:
                outcome.add(_change(image, rules, topic, index, returning=broker_id).decide())
    return outcome


def replica_lost(
    image: ClusterImage, rules: TopicElectionRules, broker_id: int, partitions: Iterable[tuple[TopicImage, int]]
) -> ElectionOutcome:
    """A broker reports that its replicas of these partitions are damaged: they leave both sets, and the broker may then discard
    them and copy them again. A partition that would have nobody left to lead it keeps the replica, because what is left of it is
    the best there is; the operator decides."""
    outcome = ElectionOutcome()
    for topic, index in partitions:
        partition = topic.partitions[index]
        if {*partition.isr, *partition.eligible_leader_replicas} - {broker_id}:
            outcome.add(replace(_change(image, rules, topic, index, without=broker_id), gone=(broker_id,)).decide())
    return outcome


def settings_changed(image: ClusterImage, rules: TopicElectionRules, topics: Iterable[TopicImage]) -> ElectionOutcome:
    """``min.insync.replicas`` or ``unclean.leader.election.enable`` of these topics change. ``rules`` has the new values. These
    records belong into the same batch as the change: with a smaller minimum, the high watermark moves on without those who were
    eligible by the larger one."""
    outcome = ElectionOutcome()
    for topic in topics:
        for index, partition in topic.partitions.items():
            if partition.eligible_leader_replicas or partition.leader == NO_LEADER:
                outcome.add(_change(image, rules, topic, index).decide())
    return outcome


def _change(
    image: ClusterImage,
    rules: TopicElectionRules,
    topic: TopicImage,
    index: int,
    *,
    without: int | None = None,
    returning: int | None = None,
) -> PartitionChange:
    """The change by an event: broker ``without`` leaves, or broker ``returning`` may lead again."""

    def is_acceptable(broker_id: int) -> bool:
        return broker_id != without and (broker_id == returning or image.brokers.is_active(broker_id))

    return PartitionChange(
        topic,
        index,
        is_acceptable,
        rules.min_insync_replicas(topic.name),
        isr=tuple(replica for replica in topic.partitions[index].isr if replica != without),
        election_type=ElectionType.UNCLEAN if rules.allows_unclean_election(topic.name) else ElectionType.ONLINE,
    )


# -- on request --------------------------------------------------------------------------------------------------------------


def elect_leaders(
    image: ClusterImage, rules: TopicElectionRules, election_type: int, partitions: Sequence[TopicPartition] | None
) -> ControllerResult[list[ElectionResult]]:
    """ElectLeaders. ``partitions`` None means all; partitions that need no election are then left out of the response, as in
    Kafka."""
    if election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no election type {election_type}")
    wanted = partitions
    if wanted is None:
        # Nearly all are led as they should be, and an error for each of a hundred thousand would hold the controller.
        is_preferred = election_type == ElectionType.PREFERRED
        wanted = [
            (topic.name, index)
            for topic in image.topics
            for index, partition in topic.partitions.items()
            if (partition.leader != partition.replicas[0] if is_preferred else partition.leader == NO_LEADER)
        ]
    records: list[MetadataRecord] = []
    results: list[ElectionResult] = []
    for name, index in dict.fromkeys(wanted):
        try:
            topic = _find(image, name, index)
            records += _elect_on_request(image, rules, ElectionType(election_type), topic, index).records
            results.append(ElectionResult(name, index))
        except ApiError as error:
            if partitions is not None or error.code is not ErrorCode.ELECTION_NOT_NEEDED:
                results.append(ElectionResult(name, index, error.code, error.message))
    return ControllerResult(records, results)


def rebalance_leaders(image: ClusterImage, rules: TopicElectionRules, imbalance_percentage_max: int = 0) -> ElectionOutcome:
    """Make preferred replicas leaders again where they are in sync, at most ``REBALANCED_PARTITIONS_MAX`` of them
    (``auto.leader.rebalance.enable``). A broker is helped if others lead more than ``imbalance_percentage_max`` percent of the
    partitions that prefer it."""
    outcome = ElectionOutcome()
    imbalanced = _imbalanced_brokers(image, imbalance_percentage_max)
    for topic in image.topics:
        for index, partition in topic.partitions.items():
            preferred = partition.replicas[0]
            if preferred not in imbalanced or partition.leader in (preferred, NO_LEADER) or preferred not in partition.isr:
                continue
            if image.brokers.is_active(preferred):
                outcome.add(_on_request(image, rules, ElectionType.PREFERRED, topic, index))
            if len(outcome.records) >= REBALANCED_PARTITIONS_MAX:
                return outcome
    return outcome


def _imbalanced_brokers(image: ClusterImage, imbalance_percentage_max: int) -> set[int]:
    preferred, led_elsewhere = Counter[int](), Counter[int]()
    for topic in image.topics:
        for partition in topic.partitions.values():
            broker_id = partition.replicas[0]
            preferred[broker_id] += 1
            led_elsewhere[broker_id] += partition.leader != broker_id
    return {
        broker_id for broker_id, count in preferred.items() if led_elsewhere[broker_id] * 100 > imbalance_percentage_max * count
    }


def _elect_on_request(
    image: ClusterImage, rules: TopicElectionRules, election_type: ElectionType, topic: TopicImage, index: int
) -> ElectionOutcome:
    place, partition = f"{topic.name}-{index}", topic.partitions[index]
    preferred = partition.replicas[0]
    if election_type is ElectionType.PREFERRED:
        if partition.leader == preferred:
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, f"{place} is led by its preferred leader")
    elif partition.leader != NO_LEADER:
        raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, f"{place} has a leader")
    outcome = _on_request(image, rules, election_type, topic, index)
    if election_type is ElectionType.PREFERRED:
        if not any(election.leader == preferred for election in outcome.elections):
            raise ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} is not in sync for {place}")
    elif not outcome.elections:
        raise ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {place} is active")
    return outcome


def _on_request(
    image: ClusterImage, rules: TopicElectionRules, election_type: ElectionType, topic: TopicImage, index: int
) -> ElectionOutcome:
    minimum = rules.min_insync_replicas(topic.name)
    isr = topic.partitions[index].isr
    return PartitionChange(topic, index, image.brokers.is_active, minimum, isr, election_type).decide()


def _find(image: ClusterImage, name: str, index: int) -> TopicImage:
    topic = image.topic(name)
    if topic is None or index not in topic.partitions:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{index} does not exist")
    return topic
