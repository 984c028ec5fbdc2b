"""One simulated run of groups: a broker, groups of both protocols, the faults of either, and the end.

Producers write while members read and commit, crash, leave and are paused, and the broker and its disk fail, until there are
enough acknowledged commits, owners and faults. Then everything heals, every member comes back, and within a bounded time every
partition has an owner in each group, is read to its end and committed.
"""

from collections.abc import Callable

from simulation.checker import Violation, check
from simulation.consumer import Consumer
from simulation.group_checker import GroupHistory, check_groups, final_ends
from simulation.group_member import SESSION_MS, ClassicMember, ConsumerMember, GroupMember
from simulation.history import ACKS_ALL, PartitionId
from simulation.nemesis import FAULTS, LASTS_US, Nemesis
from simulation.offset_reader import OffsetReader
from simulation.producer import Producer
from simulation.stage import NoProgress, Stage, TopicPlan

COMMITS_MIN = 50
OWNERSHIPS_MIN = 30
FAULTS_MIN = 10
FAULT_INTERVAL_US = (10_000, 200_000)
# Faults of members are as frequent as those of the broker.
MEMBER_FAULTS_WEIGHT = 4
# The groups of a run: one or both.
GROUPS = (("classic",), ("consumer",), ("classic", "consumer"))
MEMBERS = (2, 4)
STATIC_LIKELIHOOD = 0.4
# These are shorter or longer than a session.
REBALANCE_MS = (200, 600)
# Without faults there is no excuse: this covers the end of sessions, a rebalance, and the rest of the records.
HEALED_US_MAX = 10_000_000
PRODUCER_THINK_US = (10_000, 120_000)

TOPIC_NAMES = {"orders", "events"}
TOPICS: tuple[TopicPlan, ...] = (("orders", 3, {"segment.index.bytes": "120"}, False), ("events", 2, {}, False))
SETTINGS = {
    "log.retention.check.interval.ms": "250",
    "log.flush.offset.checkpoint.interval.ms": "400",
    "offsets.topic.num.partitions": "3",
    "group.min.session.timeout.ms": "10",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "100",
}
PAUSE_US = (SESSION_MS * 500, SESSION_MS * 3_000)


class GroupNemesis(Nemesis):
    world: "GroupWorld"
    interval_us = FAULT_INTERVAL_US

    def __init__(self, world: "GroupWorld") -> None:
        super().__init__(world, GROUP_FAULTS, ("__consumer_offsets",))
        if not any(name in MEMBER_FAULTS for name in self.enabled):
            self.enabled += MEMBER_FAULTS
        self.enabled += [name for name in self.enabled if name in MEMBER_FAULTS for _ in range(MEMBER_FAULTS_WEIGHT)]

    def crash_member(self) -> bool:
        member = self._running()
        if member is not None:
            member.crash()
            self._bring_back(member)
        return member is not None

    def leave_member(self) -> bool:
        member = self._running()
        if member is not None:
            member.leave()
            self._bring_back(member)
        return member is not None

    def pause_member(self) -> bool:
        """Pause a member, mostly for longer than its session lasts."""
        member = self._running()
        if member is not None:
            member.pause(self.draw(PAUSE_US))
        return member is not None

    def _running(self) -> GroupMember | None:
        running = [member for member in self.world.members if member.is_running and not member.is_paused]
        return running[self.draw((0, len(running) - 1))] if running else None

    def _bring_back(self, member: GroupMember) -> None:
        def bring_back() -> None:
            if not member.is_running and not member.is_away:
                member.start()

        # Not with ``later``: it comes back when all is over too.
        self.world.scheduler.schedule(self.draw(LASTS_US) + 60_000, f"{member.name} comes back", bring_back)


MEMBER_FAULTS: dict[str, Callable[..., bool]] = {
    "member crashes": GroupNemesis.crash_member,
    "member leaves": GroupNemesis.leave_member,
    "member is paused": GroupNemesis.pause_member,
}
# No topic is deleted here: other tests cover what is left of its offsets and owners.
GROUP_FAULTS: dict[str, Callable[..., bool]] = {
    **{name: fault for name, fault in FAULTS.items() if name != "topic made again"},
    **MEMBER_FAULTS,
}


class GroupWorld(Stage):
    nemesis: GroupNemesis

    def __init__(self, seed: int) -> None:
        super().__init__(seed, TOPICS, SETTINGS)
        self.group_history = GroupHistory(self.history, self.scheduler)
        self.members: list[GroupMember] = []
        randomness = self.randomness.fork("groups")
        for kind in GROUPS[randomness.integer(0, len(GROUPS) - 1)]:
            names = [f"{kind}-{number}" for number in range(randomness.integer(*MEMBERS))]
            self.group_history.groups[kind] = names
            members = [self._member(kind, name, randomness.fraction() < STATIC_LIKELIHOOD) for name in names]
            rebalance_ms = REBALANCE_MS[randomness.integer(0, 1)]
            for member in members:
                member.rebalance_ms = rebalance_ms
            self.members += members
        self.producer = self._producer("producer", PRODUCER_THINK_US)
        self.nemesis = GroupNemesis(self)
        self.hosts = ["admin", self.producer.name, *(member.name for member in self.members)]

    def _member(self, kind: str, name: str, is_static: bool) -> GroupMember:
        shared = name, kind, self.environment, self.randomness.fork(name), self.group_history, self.live_topics
        return ClassicMember(*shared, name if is_static else None) if kind == "classic" else ConsumerMember(*shared)

    def _producer(self, name: str, think_us: tuple[int, int]) -> Producer:
        randomness = self.randomness.fork(name)
        return Producer(name, self.environment, randomness, self.live_topics, (ACKS_ALL,), TOPIC_NAMES, think_us)

    # -- phases --------------------------------------------------------------------------------------------------------------

    @property
    def operations(self) -> int:
        return self.group_history.acked

    @property
    def is_enough(self) -> bool:
        history = self.group_history
        return history.acked >= COMMITS_MIN and len(history.ownerships) >= OWNERSHIPS_MIN and self.fault_count >= FAULTS_MIN

    def run(self) -> None:
        """Raises NoProgress when a phase does not end; any other problem is in the histories."""
        self.set_up()
        watcher = self._offset_reader(is_final=False)
        self.hosts.append(watcher.name)
        self.producer.start()
        watcher.start()
        for member in self.members:
            member.start()
        self.nemesis.start()
        self.run_until("faults", lambda: self.is_enough)
        self.nemesis.heal()
        self.heal_broker()
        self.producer.stop()
        self.run_until("last answers", lambda: self.producer.is_idle, HEALED_US_MAX)
        self.producer.close()
        watcher.close()
        self._read_everything()
        self._send_some_away()
        self._drain()
        self._read_offsets()

    def _send_some_away(self) -> None:
        """Send some members away for good, without a word: the others must get their partitions."""
        randomness = self.randomness.fork("away")
        for group in self.group_history.groups:
            present = [member for member in self.members if member.group == group]
            if randomness.integer(0, 1):
                member = present[randomness.integer(0, len(present) - 1)]
                member.is_away = True
                member.crash()

    def _drain(self) -> None:
        ends = final_ends(self.history)
        try:
            self.run_until("draining", lambda: self._is_drained(ends), HEALED_US_MAX)
        except NoProgress as error:
            raise NoProgress(f"{error}: {self._undrained()}") from None
        for member in self.members:
            member.crash()

    def _is_drained(self, ends: dict[PartitionId, int]) -> bool:
        """Whether every group owns every partition, and has read and committed all of it."""
        owned = [(member.group, partition, each) for member in self.members for partition, each in member.owned.items()]
        is_complete = {(group, partition) for group, partition, _ in owned} == {
            (group, partition) for group in self.group_history.groups for partition in ends
        }
        is_back = all(member.is_away or (member.is_running and not member.is_paused) for member in self.members)
        return is_complete and is_back and all(each.position == each.committed == ends[key] for _, key, each in owned)

    def _undrained(self) -> str:
        name_of = self.history.name_of
        lines = []
        for member in self.members:
            owned = [
                f"{name_of(key)} at {each.position} of {each.end_offset}, committed {each.committed}"
                for key, each in member.owned.items()
            ]
            lines.append(f"{member.name} {'runs' if member.is_running else 'is away'}: {'; '.join(owned) or 'nothing'}")
        return " | ".join(lines)

    def _read_everything(self) -> None:
        final = Consumer("final", self.environment, self.randomness.fork("final"), self.live_topics, TOPIC_NAMES, is_final=True)
        final.start()
        self.run_until("final reads", lambda: final.is_caught_up, HEALED_US_MAX)
        final.close()

    def _read_offsets(self) -> None:
        reader = self._offset_reader(is_final=True)
        reader.start()
        self.run_until("last offsets", lambda: reader.is_done, HEALED_US_MAX)
        reader.close()

    def _offset_reader(self, is_final: bool) -> OffsetReader:
        groups = list(self.group_history.groups)
        randomness = self.randomness.fork(f"offsets {is_final}")
        return OffsetReader(self.environment, randomness, self.group_history, groups, self.live_topics(), is_final)

    def check(self) -> list[Violation]:
        return check(self.history) + check_groups(self.group_history)
