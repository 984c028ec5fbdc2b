"""How long acknowledged writes stop when a broker dies, hangs or is stopped, and how available the cluster is meanwhile.

An idempotent producer writes 200 messages a second to each partition, of which each broker leads one. The gap of a round is the
longest time in which a partition acknowledged nothing, from the fault until all that was sent before the last half second is
acknowledged. After each round all replicas are in sync again. In the end everything is read: what was acknowledged has to be
there, once.
"""

from collections.abc import Callable
from time import monotonic, sleep

from confluent_kafka import KafkaError, Message, Producer

from bench.clusters.experiment import Experiment, Line, Run
from bench.clusters.subjects import NODES, ClusterSubject, pause, resume
from bench.clusters.traffic import (
    COMMON,
    PER_SECOND,
    SMALL,
    count_values,
    create,
    elect_preferred,
    leaders,
    restart,
    wait_until,
    wait_until_in_sync,
    writing,
)
from bench.measure import Target
from tidelog.client.quorum import QuorumAdmin

SECTION = "Faults: the longest gap in acknowledged writes"
TOPIC = "orders"
# A running client may wait for its own time-outs of half a minute and more.
ROUNDS_OF_PAUSES = 3
# A new client comes this often, until one of them has written.
NEW_CLIENT_SECONDS = 0.5
SHORT_TIMEOUT = {"socket.timeout.ms": 5000}
LATE_SECONDS = 1.0
DAY_SECONDS = 86_400
FAULT_EVERY_SECONDS = 60.0
GAP_MAX = Target("<=", 2.0)

KILLED_LEADER = "kill -9 of a leader, median"
KILLED_LEADER_WORST = "kill -9 of a leader, longest of all runs"
KILLED_FOLLOWER = "kill -9 of a follower, median"
KILLED_FOLLOWER_WORST = "kill -9 of a follower, longest of all runs"
WRONG = "messages lost or written twice by kill -9"
PAUSED_NEW = "SIGSTOP of a leader, until a new client can write"
PAUSED_RUNNING = "SIGSTOP of a leader, for a running client"
PAUSED_SHORT = "the same with socket.timeout.ms=5000 instead of 60000"
STOPPED = "controlled shutdown of a leader, median"
STOPPED_WORST = "controlled shutdown of a leader, longest of all runs"
ROLLING = "rolling restart, worst of its steps"
AVAILABLE = "kill -9 of a leader each minute: acknowledged within 1 s"
AVAILABLE_DAY = "the same for one such fault a day"


def controller_of(subject: ClusterSubject, without: int | None = None) -> int:
    servers = ",".join(subject.bootstrap_server(node_id) for node_id in range(1, NODES + 1) if node_id != without)
    with QuorumAdmin(servers) as admin:
        return admin.describe().leader_id


def gaps(run: Run, do: Callable[[ClusterSubject, int], None], *, of_leader: bool = True) -> list[float]:
    """The gap of each round in which this was done to a broker: of the partition that it led, or of those that it followed.

    The active controller has its turn every second time."""
    create(run.subject, TOPIC, assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    found, with_controller = [], 0
    with writing(run.subject, TOPIC, NODES, NODES * PER_SECOND) as writer:
        for number in range(run.scale.rounds):
            elect_preferred(run.subject, TOPIC)
            controller = controller_of(run.subject)
            victim = controller if number % 2 == 0 else controller % NODES + 1
            led = leaders(run.subject, TOPIC)
            partitions = [index for index, leader in enumerate(led) if (leader == victim) == of_leader]
            with_controller += victim == controller
            began = monotonic()
            do(run.subject, victim)
            writer.wait_until_settled(began)
            found.append(writer.longest_gap(began, monotonic(), partitions))
            run.say(f"    {found[-1]:.2f} s{', also the active controller' if victim == controller else ''}")
            run.subject.start(victim)
            wait_until_in_sync(run.subject)
    values = count_values(run.subject, TOPIC, NODES, writer.numbers)
    lost = sum(not values[number] for number in writer.numbers)
    doubled = sum(count > 1 for count in values.values())
    run.add(WRONG, lost + doubled)
    run.note(f"{run.subject.label}: {with_controller} of {len(found)} rounds hit the active controller as well")
    return found


def kill_leader(run: Run) -> None:
    found = gaps(run, lambda subject, victim: subject.kill(victim))
    _add_all(run, KILLED_LEADER, KILLED_LEADER_WORST, found)


def kill_follower(run: Run) -> None:
    found = gaps(run, lambda subject, victim: subject.kill(victim), of_leader=False)
    run.values.pop(WRONG)
    _add_all(run, KILLED_FOLLOWER, KILLED_FOLLOWER_WORST, found)


def stop_leader(run: Run) -> None:
    found = gaps(run, lambda subject, victim: subject.stop(victim))
    run.values.pop(WRONG)
    _add_all(run, STOPPED, STOPPED_WORST, found)


def _add_all(run: Run, what: str, worst: str, found: list[float]) -> None:
    for gap in found:
        run.values.setdefault(what, []).append(gap)
    run.add(worst, max(found))


def pause_leader(run: Run) -> None:
    create(run.subject, TOPIC, 1)
    with writing(run.subject, TOPIC) as writer, writing(run.subject, TOPIC, settings=SHORT_TIMEOUT) as impatient:
        for _ in range(run.scale.fewer_rounds(ROUNDS_OF_PAUSES)):
            (leader,) = leaders(run.subject, TOPIC)
            began = monotonic()
            pause(run.subject, leader)
            try:
                run.add(PAUSED_NEW, first_message_of_new_clients(run.subject.bootstrap_servers) - began)
                impatient.wait_until_settled(began)
                writer.wait_until_settled(began)
            finally:
                resume(run.subject, leader)
            run.add(PAUSED_RUNNING, writer.longest_gap(began, monotonic()))
            run.add(PAUSED_SHORT, impatient.longest_gap(began, monotonic()))
            wait_until_in_sync(run.subject)


def first_message_of_new_clients(bootstrap_servers: str) -> float:
    """When the first message of one of them was acknowledged. They know the addresses of all brokers and nothing else.

    A client that meets the paused broker first waits for its own time-outs, so there are several."""
    acknowledged: list[float] = []
    producers: list[Producer] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is None:
            acknowledged.append(monotonic())

    def is_acknowledged() -> bool:
        if not producers or monotonic() - began > len(producers) * NEW_CLIENT_SECONDS:
            producers.append(Producer({**COMMON, "bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0}))
            producers[-1].produce(TOPIC, SMALL, partition=0, on_delivery=delivered)
        for producer in producers:
            producer.poll(0)
        return bool(acknowledged)

    began = monotonic()
    wait_until(is_acknowledged, "a new client's message is acknowledged")
    return acknowledged[0]


def rolling_restart(run: Run) -> None:
    create(run.subject, TOPIC)
    found = []
    with writing(run.subject, TOPIC, NODES) as writer:
        for node_id in range(1, NODES + 1):
            began = monotonic()
            restart(run.subject, node_id)
            found.append(writer.longest_gap(began, monotonic()))
            run.say(f"    step {node_id}: {found[-1]:.2f} s")
    run.add(ROLLING, max(found))
    run.note(f"{run.subject.label}: steps {', '.join(f'{gap:.2f}' for gap in found)} s")


def kill_each_minute(run: Run) -> None:
    every = 5.0 if run.scale.is_quick else FAULT_EVERY_SECONDS
    faults = 1 if run.scale.is_quick else max(1, round(run.scale.minutes))
    create(run.subject, TOPIC)
    began = monotonic()
    with writing(run.subject, TOPIC, NODES) as writer:
        for number in range(faults):
            sleep(max(0.0, began + number * every + every / 2 - monotonic()))
            victim = leaders(run.subject, TOPIC)[number % NODES]
            run.subject.kill(victim)
            run.subject.start(victim)
            wait_until_in_sync(run.subject)
        sleep(max(0.0, began + faults * every - monotonic()))
    latencies = writer.latencies()
    late = sum(latency > LATE_SECONDS for latency in latencies) / len(latencies)
    run.add(AVAILABLE, 100 * (1 - late))
    run.add(AVAILABLE_DAY, 100 * (1 - late * (monotonic() - began) / faults / DAY_SECONDS))


EXPERIMENTS = (
    Experiment(
        "kill-leader",
        SECTION,
        "kill -9 of the leader of a partition (--rounds)",
        (Line(KILLED_LEADER, "s"), Line(KILLED_LEADER_WORST, "s", GAP_MAX), Line(WRONG, "", Target("<=", 0))),
        kill_leader,
    ),
    Experiment(
        "kill-follower",
        SECTION,
        "kill -9 of a follower (--rounds)",
        (Line(KILLED_FOLLOWER, "s"), Line(KILLED_FOLLOWER_WORST, "s", GAP_MAX)),
        kill_follower,
    ),
    Experiment(
        "pause-leader",
        SECTION,
        "SIGSTOP of the leader, for new clients and for the running one (--rounds, at most 3)",
        (Line(PAUSED_NEW, "s", Target("<=", 6.0)), Line(PAUSED_RUNNING, "s"), Line(PAUSED_SHORT, "s")),
        pause_leader,
    ),
    Experiment(
        "stop-leader",
        SECTION,
        "controlled shutdown of the leader (--rounds)",
        (Line(STOPPED, "s"), Line(STOPPED_WORST, "s", Target("<=", 0.5))),
        stop_leader,
    ),
    Experiment(
        "rolling-restart",
        SECTION,
        "one node after the other, each as soon as all replicas are in sync",
        (Line(ROLLING, "s", Target("<=", 1.0)),),
        rolling_restart,
    ),
    Experiment(
        "availability",
        SECTION,
        "kill -9 of a leader once a minute (--minutes)",
        (Line(AVAILABLE, "%", Target(">=", 97.0)), Line(AVAILABLE_DAY, "%", Target(">=", 99.99))),
        kill_each_minute,
    ),
)
