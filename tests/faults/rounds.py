"""Rounds of load and crash on one broker, and the reckoning at the end."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import sleep

from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.history import History
from tests.faults.load import COMMON, PARTITIONS, TOPIC, ProducerWorker, ReaderWorker, TopicWorker, read_all, wait_until
from tidelog.testing import Broker

# Each test run affords a few crashes; `make soak` asks for many more of the same.
ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "8"))
PRODUCERS = 3
READERS = 2
VALUE_BYTES = 300
# A crash comes this long after the first acknowledgements of a round: while segments roll, marks and checkpoints are written.
LOAD_SECONDS_MAX = 0.5
ACKNOWLEDGED_MIN = 20
# As small as it may be, so that segments roll in every few rounds.
# The least that may be reported: what was being written, or deleted, when the crash came; and that the machine is busy.
AFTER_A_CRASH = {
    "started",
    "torn_tail_cut",
    "stray_log",
    "partition_not_created",
    "partition_metadata_ignored",
    "loop_lag",
    "client_paused",
}
CONFIGS = {"log.segment.bytes": 1 << 20, "log.flush.interval.messages": 1}


@dataclass(slots=True)
class Outcome:
    acknowledged: int
    read: int
    duplicates: int
    problems: list[str]


def create_topic(broker: Broker, name: str = TOPIC, partitions: int = PARTITIONS, **configs: object) -> None:
    admin = AdminClient({**COMMON, "bootstrap.servers": broker.bootstrap_servers})
    texts = {key.replace("_", "."): str(value) for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=texts)])[name].result(10)


def run_rounds(broker: Broker, rounds: int, random: Random, crash: Callable[[], None]) -> Outcome:
    """``crash`` ends the broker's process and leaves the disk as it likes; then the broker must come back by itself."""
    history = History()
    create_topic(broker)
    bootstrap = broker.bootstrap_servers
    producers = [ProducerWorker(number, bootstrap, history, VALUE_BYTES) for number in range(PRODUCERS)]
    readers = [ReaderWorker(number, bootstrap, history) for number in range(READERS)]
    topics = TopicWorker(bootstrap, history)
    workers = [*producers, *readers, topics]
    for worker in workers:
        worker.start()
    for number in range(rounds):
        history.round = number
        enough = len(history.acknowledged) + ACKNOWLEDGED_MIN
        wait_until(lambda: len(history.acknowledged) >= enough or bool(history.problems), f"acknowledgements of round {number}")  # noqa: B023 - called at once
        if history.problems:
            break
        sleep(random.random() * LOAD_SECONDS_MAX)
        crash()
        broker.start()
        check_events(broker, history)
    history.round = rounds
    if history.problems:
        return Outcome(len(history.acknowledged), len(history.read), 0, history.problems[:20])
    return _reckon(broker, history, producers, readers, topics)


def _reckon(
    broker: Broker, history: History, producers: list[ProducerWorker], readers: list[ReaderWorker], topics: TopicWorker
) -> Outcome:
    for worker in (topics, *producers):
        worker.finish()
    topics.check()
    for producer in producers:
        history.problems.extend(f"{producer.name}: {failure}" for failure in producer.failures[:5])
    final = read_all(broker.bootstrap_servers)
    if not history.problems:
        wait_until(lambda: all(sum(reader.next_offsets) >= len(final) for reader in readers), "readers at the end of the log")
    for reader in readers:
        reader.finish()
    duplicates = history.check(final, PARTITIONS)
    check_events(broker, history)
    return Outcome(len(history.acknowledged), len(history.read), duplicates, history.problems[:20])


def check_events(broker: Broker, history: History) -> None:
    """Only events that a crash explains: no partition offline, nothing unexpected, no line that is no event (a traceback)."""
    for line in broker.log_lines:
        if not line.startswith("{"):
            history.problem(f"the broker said: {line}")
            return
    for event in broker.events:
        if event["event"] not in AFTER_A_CRASH:
            history.problem(f"the broker reported {event}")
            return
