"""The metadata quorum: a first start, creating topics, the death of the active controller, and many partitions.

*The next decision* is a topic that a client creates through a broker that is left, counted from the fault.
"""

import re
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.beside import throughput
from bench.clusters.experiment import Experiment, Line, Run
from bench.clusters.faults import controller_of
from bench.clusters.load import Reached
from bench.clusters.subjects import NODES, ClusterSubject, pause, resume
from bench.clusters.traffic import (
    COMMON,
    SMALL,
    WAIT_SECONDS_MAX,
    NotDelivered,
    create_many,
    restart,
    send,
    wait_until,
    wait_until_in_sync,
)
from bench.measure import Target
from tidelog.client.admin import Admin

SECTION = "The metadata quorum"
MANY_SECTION = "Many partitions"
TOPICS = 200
IDLE_SECONDS = 5.0
MANY = 10_000
ROUNDS_OF_FAILOVERS = 5
REQUEST_SECONDS_MAX = 2.0
# An idempotent librdkafka producer has five requests in flight at each broker: one to each of thousands measures that.
WRITTEN_TO = 30
NOBODY = -1

FIRST = "three processes: start to the first acknowledged message"
IDLE = "three processes: idle memory together"
CREATED_50 = "creating a topic, p50"
CREATED_99 = "creating a topic, p99"
KILLED = "kill -9 of the active controller to the next decision"
PAUSED = "SIGSTOP of the active controller to the next decision"
REPLICATED_FAILOVER = "3,000 partitions x 3: kill -9 of a broker until all have leaders and 30 of them were written to"
REPLICATED_ROLLING = "3,000 partitions x 3: rolling restart of all brokers"
MANY_START = "10,000 partitions: a broker starts"
MANY_FAILOVER = "10,000 partitions: kill -9 of the active controller to the next decision"
MANY_SLICE = "10,000 partitions: longest slice of background work on a loop, at most"


def first_message(run: Run) -> None:
    began = monotonic()
    run.subject.start_all()
    throughput.send_one(Reached(run.subject), "first", SMALL)
    run.add(FIRST, monotonic() - began)
    sleep(run.scale.seconds(IDLE_SECONDS))
    run.add(IDLE, sum(proportional_mebibytes(run.subject.pid(node_id)) for node_id in range(1, NODES + 1)))


def proportional_mebibytes(pid: int) -> float:
    """Return the memory of a process. Pages that it shares with others count in part (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def create_topics(run: Run) -> None:
    count = run.scale.of(TOPICS)
    admins = [Admin(run.subject.bootstrap_server(node_id)) for node_id in range(1, NODES + 1)]
    found = []
    for number in range(count + NODES):
        began = monotonic()
        admins[number % NODES].create_topic(f"topic-{number}", partitions=1)
        # The first one of each client connects it.
        if number >= NODES:
            found.append(1000 * (monotonic() - began))
    for admin in admins:
        admin.close()
    percentiles = statistics.quantiles(found, n=100, method="inclusive")
    run.add(CREATED_50, percentiles[49])
    run.add(CREATED_99, percentiles[98])


def decision_after(subject: ClusterSubject, fault: Callable[[ClusterSubject, int], None]) -> tuple[int, float]:
    """The victim, and how long it took."""
    victim = controller_of(subject)
    survivor = victim % NODES + 1
    began = monotonic()
    fault(subject, victim)
    wait_until(lambda: is_decided(subject.bootstrap_server(survivor), victim), "the quorum decides")
    return victim, monotonic() - began


def is_decided(server: str, victim: int) -> bool:
    """Whether a new topic was created; it does not matter whether it can be used, for its replica may be on the victim.

    librdkafka waits for the controller that it knows, even if that is dead. A new client asks this server first."""
    name = f"after-{monotonic()}"
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    try:
        if admin.list_topics(timeout=REQUEST_SECONDS_MAX).controller_id in (victim, NOBODY):
            return False
        admin.create_topics([NewTopic(name, 1, 1)], request_timeout=REQUEST_SECONDS_MAX)[name].result(REQUEST_SECONDS_MAX)
        return True
    except (KafkaException, TimeoutError):
        return False


def kill_controller(run: Run) -> None:
    for _ in range(run.scale.fewer_rounds(ROUNDS_OF_FAILOVERS)):
        victim, seconds = decision_after(run.subject, lambda subject, node_id: subject.kill(node_id))
        run.add(KILLED, seconds)
        run.subject.start(victim)
        wait_until_in_sync(run.subject)


def pause_controller(run: Run) -> None:
    for _ in range(run.scale.fewer_rounds(ROUNDS_OF_FAILOVERS)):
        victim, seconds = decision_after(run.subject, pause)
        resume(run.subject, victim)
        run.add(PAUSED, seconds)
        wait_until_in_sync(run.subject)


# -- many partitions -------------------------------------------------------------------------------------------------------------


def failover_of_many(run: Run) -> None:
    topics = create_many(run.subject, "many", run.scale.of(run.scale.partitions))
    producer = Producer(
        {**COMMON, "bootstrap.servers": run.subject.bootstrap_servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    )
    write_to_some(producer, topics)
    admin = AdminClient({"bootstrap.servers": run.subject.bootstrap_server(2), "log_level": 0})
    began = monotonic()
    run.subject.kill(1)
    wait_until(lambda: not led_by(admin, {1, NOBODY}), "all partitions have other leaders")
    write_to_some(producer, topics)
    run.add(REPLICATED_FAILOVER, monotonic() - began)
    run.subject.start(1)
    wait_until_in_sync(run.subject)


def led_by(admin: AdminClient, brokers: Collection[int]) -> int:
    """How many partitions these brokers lead."""
    topics = admin.list_topics(timeout=WAIT_SECONDS_MAX).topics.values()
    return sum(each.leader in brokers for topic in topics for each in topic.partitions.values())


def write_to_some(producer: Producer, topics: Mapping[str, int]) -> None:
    places = [(topic, partition) for topic, partitions in topics.items() for partition in range(partitions)]
    for topic, partition in places[:: max(1, len(places) // WRITTEN_TO)]:
        send(producer, topic, SMALL, partition)
    if producer.flush(WAIT_SECONDS_MAX):
        raise NotDelivered(f"{len(producer)} messages, one to each of some partitions")


def restart_with_many(run: Run) -> None:
    create_many(run.subject, "many", run.scale.of(run.scale.partitions))
    began = monotonic()
    for node_id in range(1, NODES + 1):
        restart(run.subject, node_id)
    run.add(REPLICATED_ROLLING, monotonic() - began)


def ten_thousand(run: Run) -> None:
    create_many(run.subject, "many", run.scale.of(MANY), replicas=1)
    with noting_slices(run):
        for _ in range(run.scale.fewer_rounds(3)):
            victim, seconds = decision_after(run.subject, lambda subject, node_id: subject.kill(node_id))
            run.add(MANY_FAILOVER, seconds)
            began = monotonic()
            run.subject.start(victim)
            run.add(MANY_START, monotonic() - began)
            wait_until_in_sync(run.subject)


@contextmanager
def noting_slices(run: Run) -> Iterator[None]:
    """The longest of what the brokers say about their loops, since their processes began."""
    yield
    pages = [run.subject.metrics(node_id) for node_id in range(1, NODES + 1)]
    if all(pages):
        run.add(MANY_SLICE, 1000 * max(longest_of(page, "tidelog_loop_background_seconds") for page in pages))


def longest_of(page: str, histogram: str) -> float:
    """The upper bound of the highest bucket that has something, in seconds."""
    before, bound = 0.0, 0.0
    for match in re.finditer(rf'^{histogram}_bucket{{le="([^"]+)"}} (\S+)$', page, re.MULTILINE):
        if float(match[2]) > before:
            before, bound = float(match[2]), float(match[1])
    return bound


EXPERIMENTS = (
    Experiment(
        "first-message",
        SECTION,
        "three processes on empty directories",
        (Line(FIRST, "s", Target("<=", 2.0)), Line(IDLE, "MiB", Target("<=", 180))),
        first_message,
        starts=False,
    ),
    Experiment(
        "create-topics",
        SECTION,
        "200 topics, through every broker in turn",
        (Line(CREATED_50, "ms", Target("<=", 15)), Line(CREATED_99, "ms", Target("<=", 60))),
        create_topics,
    ),
    Experiment(
        "kill-controller",
        SECTION,
        "kill -9 of the active controller (--rounds, at most 5)",
        (Line(KILLED, "s", Target("<=", 1.0)),),
        kill_controller,
    ),
    Experiment(
        "pause-controller",
        SECTION,
        "SIGSTOP of the active controller (--rounds, at most 5)",
        (Line(PAUSED, "s", Target("<=", 4.0)),),
        pause_controller,
    ),
    Experiment(
        "many-failover",
        MANY_SECTION,
        "kill -9 of one of three brokers with --partitions replicated partitions",
        (Line(REPLICATED_FAILOVER, "s", Target("<=", 5.0)),),
        failover_of_many,
    ),
    Experiment(
        "many-rolling",
        MANY_SECTION,
        "rolling restart with --partitions replicated partitions",
        (Line(REPLICATED_ROLLING, "s", Target("<=", 60.0)),),
        restart_with_many,
    ),
    Experiment(
        "ten-thousand",
        MANY_SECTION,
        "10,000 partitions of one replica: start, failover of the controller, slices (--rounds, at most 3)",
        (
            Line(MANY_START, "s", Target("<=", 3.0)),
            Line(MANY_FAILOVER, "s", Target("<=", 3.0)),
            Line(MANY_SLICE, "ms", Target("<=", 10)),
        ),
        ten_thousand,
        is_beside_kafka=False,
    ),
)
