"""One simulated run: a broker, its clients, the faults, and the final reads.

There are three phases. *Setup*: topics are created. *Faults*: producers and consumers work while the nemesis strikes, until there
are enough acknowledged operations and faults. *Healing*: faults end, mostly with one more power cut, and within a bounded time
the broker must serve: every partition accepts a write with acks=all, and a final reader reads everything to its end.
"""

from simulation.consumer import Consumer
from simulation.history import ACKS_ALL, Outcome, PartitionId
from simulation.nemesis import Nemesis
from simulation.producer import ACKS_MIXES, Producer
from simulation.stage import NoProgress, Stage, TopicPlan

OPERATIONS_MIN = 1_000
FAULTS_MIN = 10
PRODUCERS = 3
CONSUMERS = 2
# Enough for some that wait.
LAST_POLLS = 6
# How long it may take to learn of a write.
NEWS_US_MAX = 2_000_000
# Without faults there is no excuse.
HEALED_US_MAX = 10_000_000

STABLE_NAMES = {"orders", "events"}
CHURNED_NAME = "churned"
# Segments of a few batches, by size, by time and by a full index.
TOPICS: tuple[TopicPlan, ...] = (
    ("orders", 2, {"segment.index.bytes": "120", "index.interval.bytes": "300"}, False),
    ("events", 2, {"segment.ms": "200", "file.delete.delay.ms": "300"}, True),
    (CHURNED_NAME, 2, {"file.delete.delay.ms": "100"}, False),
)
SETTINGS = {"log.retention.check.interval.ms": "250", "log.flush.offset.checkpoint.interval.ms": "400"}


class World(Stage):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, TOPICS, SETTINGS)
        self.producers = [self._producer(f"producer-{number}") for number in range(PRODUCERS)]
        self.consumers = [self._consumer(f"consumer-{number}") for number in range(CONSUMERS)]
        self.nemesis = Nemesis(self)
        self._clients: list[Producer | Consumer] = [*self.producers, *self.consumers]
        self.hosts = ["admin", *(client.name for client in self._clients)]

    # -- phases --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises NoProgress when a phase does not end; any other problem is in the history."""
        self.set_up()
        for client in self._clients:
            client.start()
        self.nemesis.start()
        self.run_until("faults", lambda: self.history.acked >= OPERATIONS_MIN and self.fault_count >= FAULTS_MIN)
        self._heal()
        self._write_everywhere()
        self._read_everything()

    def _heal(self) -> None:
        self.nemesis.heal()
        for producer in self.producers:
            producer.stop()
        self.heal_broker()
        for client in self._clients:
            client.close()

    def _write_everywhere(self) -> None:
        """Check liveness: every partition of the healed broker accepts writes again, and whoever waits for them learns of them at
        once."""
        patient = self._consumer("patient", is_patient=True)
        patient.start()
        self.run_until("patient reads", lambda: patient.is_caught_up, HEALED_US_MAX)
        last = self._producer("producer-last", (ACKS_ALL,))
        last.start()
        attempts = self.history.attempts
        first = len(attempts)
        missing = {PartitionId(life.topic_id, number) for life in self.live_topics() for number in range(life.partitions)}
        seen = self.history.acked

        def is_written() -> bool:
            nonlocal seen
            if self.history.acked > seen:
                seen = self.history.acked
                missing.difference_update(one.partition for one in attempts[first:] if one.outcome is Outcome.ACKED)
            return not missing

        self.run_until("last writes", is_written, HEALED_US_MAX)
        last.stop()
        self.run_until("last answers", lambda: last.is_idle, HEALED_US_MAX)
        last.close()
        written = [one for one in attempts[first:] if one.outcome is Outcome.ACKED]
        ends = {one.partition: one.base_offset + len(one.values) for one in written}
        self.run_until("news of last writes", lambda: all(patient.has_read(*end) for end in ends.items()), NEWS_US_MAX)
        patient.close()

    def _read_everything(self) -> None:
        final = self._consumer("final", is_final=True)
        final.start()
        try:
            self.run_until("final reads", lambda: final.is_caught_up, HEALED_US_MAX)
        except NoProgress as error:
            raise NoProgress(f"{error}: {final.behind()}") from None
        # Now that nothing arrives any more, long polls end when they time out.
        answers = final.answers + LAST_POLLS
        self.run_until("last polls", lambda: final.answers >= answers, HEALED_US_MAX)
        final.close()

    # -- what the nemesis does with more than one part -----------------------------------------------------------------------

    def recreate_topic(self) -> bool:
        life = self.topics.get(CHURNED_NAME)
        if life is None or not self.admin.is_idle:
            return False
        _, partitions, configs, has_retention = TOPICS[-1]

        def deleted() -> None:
            self.topics.pop(CHURNED_NAME)
            self.admin.create(CHURNED_NAME, partitions, configs, self.note_created, has_retention)

        self.admin.delete(life, deleted)
        return True

    # -- the rest ------------------------------------------------------------------------------------------------------------

    def _producer(self, name: str, acks_mix: tuple[int, ...] | None = None) -> Producer:
        randomness = self.randomness.fork(name)
        mix = acks_mix if acks_mix is not None else ACKS_MIXES[randomness.integer(0, len(ACKS_MIXES) - 1)]
        return Producer(name, self.environment, randomness, self.live_topics, mix, STABLE_NAMES)

    def _consumer(self, name: str, is_final: bool = False, is_patient: bool = False) -> Consumer:
        return Consumer(name, self.environment, self.randomness.fork(name), self.live_topics, STABLE_NAMES, is_final, is_patient)
