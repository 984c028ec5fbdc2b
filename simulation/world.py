"""One simulated run: a broker, its clients, what goes wrong, and the final reads.

Three phases. *Setup*: topics are made. *Faults*: producers and consumers work while the nemesis strikes, until there are enough
acknowledged operations and faults. *Healing*: faults end, mostly with one more power cut, and within a bounded time the broker
must serve: every partition takes a write with acks=all, and a final reader reads everything to its end.
"""

from collections.abc import Callable

from simulation.admin import Admin
from simulation.client import Environment
from simulation.consumer import Consumer
from simulation.disk import Crashed, Keep
from simulation.history import ACKS_ALL, History, Outcome, PartitionId, TopicLife
from simulation.nemesis import Nemesis, count_faults
from simulation.network import SimulatedNetwork
from simulation.node import BrokerNode
from simulation.producer import ACKS_MIXES, Producer
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import EVENTS_MAX, Scheduler

OPERATIONS_MIN = 1_000
FAULTS_MIN = 10
PRODUCERS = 3
CONSUMERS = 2
# Long beyond what any run needs: one that gets here does not get on.
PHASE_US_MAX = 60_000_000
# Enough for some that wait.
LAST_POLLS = 6
# How long it may take to hear of a write.
NEWS_US_MAX = 2_000_000
# Without faults it has no excuse.
HEALED_US_MAX = 10_000_000

STABLE_NAMES = {"orders", "events"}
CHURNED_NAME = "churned"
# Segments of a few batches, by size, by time and by a full index.
TOPICS = (
    ("orders", 2, {"segment.index.bytes": "120", "index.interval.bytes": "300"}, False),
    ("events", 2, {"segment.ms": "200", "file.delete.delay.ms": "300"}, True),
    (CHURNED_NAME, 2, {"file.delete.delay.ms": "100"}, False),
)
# Some batches, or less than is written while a sync lasts.
RETENTION_BYTES = ("12000", "1500")
SETTINGS = {"log.retention.check.interval.ms": "250", "log.flush.offset.checkpoint.interval.ms": "400"}


class NoProgress(Exception):
    """A phase did not come to its end."""


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.randomness = SimulatedRandomness(seed)
        self.scheduler = Scheduler()
        self.history = History()
        self.network = SimulatedNetwork(self.scheduler, self.randomness.fork("network"))
        draw = self.randomness.fork("settings").integer
        unchecked = {"segment.bytes": draw(1_500, 30_000), "tidelog.recovery.point.interval.bytes": draw(1_000, 60_000)}
        settings = SETTINGS | {"tidelog.group.commit.syncfs.files.min": str((1, 4, 100)[draw(0, 2)])}
        self._retention = {"retention.bytes": RETENTION_BYTES[draw(0, len(RETENTION_BYTES) - 1)]}
        self.node = BrokerNode(self.scheduler, self.network, self.randomness.fork("broker"), settings, unchecked, self._on_report)
        self.environment = Environment(self.scheduler, self.network, self.history)
        self.admin = Admin(self.environment, self.randomness.fork("admin"))
        self.topics: dict[str, TopicLife] = {}
        self.producers = [self._producer(f"producer-{number}") for number in range(PRODUCERS)]
        self.consumers = [self._consumer(f"consumer-{number}") for number in range(CONSUMERS)]
        self.nemesis = Nemesis(self)
        self._clients: list[Producer | Consumer] = [*self.producers, *self.consumers]
        self._hosts = ["admin", *(client.name for client in self._clients)]

    def client_hosts(self) -> list[str]:
        return self._hosts

    # -- phases --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """NoProgress when a phase does not end; what else is wrong is in the history."""
        self.set_up()
        for client in self._clients:
            client.start()
        self.nemesis.start()
        self._run_until("faults", lambda: self.history.acked >= OPERATIONS_MIN and self.fault_count >= FAULTS_MIN)
        self._heal()
        self._write_everywhere()
        self._read_everything()

    @property
    def fault_count(self) -> int:
        return count_faults(self.nemesis.counts)

    def set_up(self) -> None:
        self.node.start()
        self.admin.start()
        for name, partitions, configs, has_retention in TOPICS:
            retention = self._retention if has_retention else {}
            self.admin.create(name, partitions, configs | retention, self._created, has_retention)
        self._run_until("setup", lambda: self.admin.is_idle and len(self.topics) == len(TOPICS))

    def _heal(self) -> None:
        self.nemesis.heal()
        for producer in self.producers:
            producer.stop()
        for name in sorted(STABLE_NAMES):
            self.give_enough_replicas(name)
        if self.nemesis.has_disk_failed:
            # What a failed disk took offline, perhaps the metadata, comes back with a new process only.
            self.node.kill()
            self.node.start_after(0)
        self._run_until("healing", lambda: self.node.is_serving and self.admin.is_idle)
        ending = self.randomness.fork("ending").integer(0, 2)
        if ending:
            self.cut_power("some" if ending == 1 else "none")
            self.node.start_after(0)
        self._run_until("restart", lambda: self.node.is_serving)
        for client in self._clients:
            client.close()

    def _write_everywhere(self) -> None:
        """Liveness: every partition of the healed broker takes writes again, and who waits for them hears of them at once."""
        patient = self._consumer("patient", is_patient=True)
        patient.start()
        self._run_until("patient reads", lambda: patient.is_caught_up, HEALED_US_MAX)
        last = self._producer("producer-last", (ACKS_ALL,))
        last.start()
        attempts = self.history.attempts
        first = len(attempts)
        missing = {PartitionId(life.topic_id, number) for life in self._live_topics() for number in range(life.partitions)}
        seen = self.history.acked

        def is_written() -> bool:
            nonlocal seen
            if self.history.acked > seen:
                seen = self.history.acked
                missing.difference_update(one.partition for one in attempts[first:] if one.outcome is Outcome.ACKED)
            return not missing

        self._run_until("last writes", is_written, HEALED_US_MAX)
        last.stop()
        self._run_until("last answers", lambda: last.is_idle, HEALED_US_MAX)
        last.close()
        written = [one for one in attempts[first:] if one.outcome is Outcome.ACKED]
        ends = {one.partition: one.base_offset + len(one.values) for one in written}
        self._run_until("news of last writes", lambda: all(patient.has_read(*end) for end in ends.items()), NEWS_US_MAX)
        patient.close()

    def _read_everything(self) -> None:
        final = self._consumer("final", is_final=True)
        final.start()
        try:
            self._run_until("final reads", lambda: final.is_caught_up, HEALED_US_MAX)
        except NoProgress as error:
            raise NoProgress(f"{error}: {final.behind()}") from None
        # Now that nothing comes any more, long polls end when their time is up.
        answers = final.answers + LAST_POLLS
        self._run_until("last polls", lambda: final.answers >= answers, HEALED_US_MAX)
        final.close()

    def _run_until(self, phase: str, condition: Callable[[], bool], duration_us_max: int = PHASE_US_MAX) -> None:
        scheduler = self.scheduler
        scheduler.record(f"until {phase}")
        deadline_us = scheduler.now_us + duration_us_max
        for _ in range(EVENTS_MAX):
            if condition():
                return
            if scheduler.now_us > deadline_us:
                raise NoProgress(f"{phase} did not end within {duration_us_max / 1_000_000:g} s")
            try:
                has_more = scheduler.step()
            except Crashed:
                self.nemesis.died_in_an_operation()
            else:
                if not has_more:
                    raise NoProgress(f"{phase} did not end, and nothing is left to happen")
        raise NoProgress(f"{phase} did not end within {EVENTS_MAX} events")

    # -- what the nemesis does with more than one part -----------------------------------------------------------------------

    def cut_power(self, keep: Keep) -> None:
        self.history.lost_unsynced()
        self.node.cut_power(keep)

    def recreate_topic(self) -> bool:
        life = self.topics.get(CHURNED_NAME)
        if life is None or not self.admin.is_idle:
            return False
        _, partitions, configs, has_retention = TOPICS[-1]

        def deleted() -> None:
            self.topics.pop(CHURNED_NAME)
            self.admin.create(CHURNED_NAME, partitions, configs, self._created, has_retention)

        self.admin.delete(life, deleted)
        return True

    def give_enough_replicas(self, name: str) -> None:
        shortages = self.topics[name].shortages
        for shortage in shortages:
            shortage.ending_at = min(shortage.ending_at, self.history.now())

        def altered() -> None:
            for shortage in shortages:
                shortage.ended_at = min(shortage.ended_at, self.history.now())

        self.admin.alter(name, {"min.insync.replicas": "1"}, altered)

    # -- the rest ------------------------------------------------------------------------------------------------------------

    def _created(self, life: TopicLife) -> None:
        self.topics[life.name] = life

    def _live_topics(self) -> list[TopicLife]:
        return list(self.topics.values())

    def _producer(self, name: str, acks_mix: tuple[int, ...] | None = None) -> Producer:
        randomness = self.randomness.fork(name)
        mix = acks_mix if acks_mix is not None else ACKS_MIXES[randomness.integer(0, len(ACKS_MIXES) - 1)]
        return Producer(name, self.environment, randomness, self._live_topics, mix, STABLE_NAMES)

    def _consumer(self, name: str, is_final: bool = False, is_patient: bool = False) -> Consumer:
        return Consumer(name, self.environment, self.randomness.fork(name), self._live_topics, STABLE_NAMES, is_final, is_patient)

    def _on_report(self, event: str, facts: dict[str, object]) -> None:
        self.scheduler.record(f"report {event} {facts}")
        may_fail = self.nemesis.is_disk_faulty or self.nemesis.has_disk_failed
        if event == "unexpected_error":
            self.history.problem("unexpected error in the broker", f"{facts}")
        elif event == "start_failed" and not may_fail:
            self.history.problem("start failed", f"{facts['error']}")
        elif event == "starting":
            self.nemesis.has_disk_failed = False
        elif event == "started" and facts["offline"] and not may_fail:
            self.history.problem("offline after a start", f"{facts['offline']}")
        elif event == "log_offline" and not may_fail:
            self.history.problem("log went offline", f"{facts}")
