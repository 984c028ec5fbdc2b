"""How soon a queue serves again, what it costs while nothing happens, and how large its state becomes.

- *Release to redelivery*: two workers of a queue topic; one releases a job, for which the other waits. Time runs from the call of
  ``nack`` until ``receive`` returns.
- *Lock expiry*: a worker takes jobs and never settles them, another one waits. A lock begins at the broker some time during
  ``receive``; it is counted from the call, so that what is said is the most that it can be.
- *Waiting receivers*: threads in other processes, a hundred to a queue, each with a ``Queue`` of its own; the broker's processor
  time while nothing is sent. Each asks again twice a second. Where they share the machine with the broker and do not get to ask
  that often, the time is scaled to as many requests.
- *Locks that are all split* and *acknowledged behind one that is stuck*: the table of the engine, in this process, by
  tracemalloc; the latter with the snapshot that is written of it.
- *Scheduled*: the growth of the broker's resident memory, from when the messages are in the log until a worker has made it look
  at all of them.
- *Features that nobody uses*: unbatched produce to an ordinary topic, at two brokers in turns. One has never seen a queue; the
  other one has a queue topic and a group that has worked on it. There is no build without the feature to compare with.
"""

import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from time import monotonic, perf_counter, sleep, time

from confluent_kafka import Producer

from bench import queues
from bench.beside import throughput
from bench.beside.latency import Percentiles
from bench.beside.peers.tidelog_queue import QUEUE_TOPIC
from bench.beside.results import Measurement, Results
from bench.beside.subjects import PAGE_CACHE, Reachable, TidelogSubject, create_topic
from bench.broker_process import WAIT_SECONDS_MAX, cpu_seconds, resident_mebibytes
from bench.measure import Target
from bench.workspace import Workspace
from tidelog import Queue
from tidelog.client.queue.job import Job
from tidelog.client.queue.queue import FETCH_WAIT_MS
from tidelog.client.queue.schedule import DUE_HEADER
from tidelog.testing import Broker
from tidelog.testing.environment import HOST, reserve_port

ROOT = Path(__file__).parents[3]
# Latencies are those of the quietest of so many rounds, because what else the machine does shows in each of them.
QUIETEST_OF = 3
REDELIVERIES = 300
# A worker that begins to wait has reached the broker after this time.
UNDER_WAY_SECONDS = 0.02
EXPIRY_SECONDS = 1.0
EXPIRY_RECEIVES = 30
JOBS_PER_RECEIVE = 10
WAITING_QUEUES, WAITING_PROCESSES, WAITING_WORKERS = 10, 2, 50
WAITING_SECONDS = 15.0
SHARE_FETCHES = 'tidelog_requests_total{api="ShareFetch"}'
STUCK_BEHIND = 10_000_000
SCHEDULED = 1_000_000
SCHEDULED_DAYS = 30
UNUSED_ROUNDS = 15
UNUSED_REQUESTS = 8_000
RECEIVE_SECONDS_MAX = 60.0
DAY_MS = 86_400_000
VALUE = b"x" * 100

REDELIVERY_P50 = "release to redelivery, p50"
REDELIVERY = "release to redelivery, p99"
EXPIRY = "lock expiry, longest delay"
WAITING = "1,000 waiting receivers, part of a core"
SPLIT = "120,000 in flight, all split"
STUCK = "10 M acknowledged behind a stuck message: state"
SCHEDULE = "1 M scheduled over 30 days: memory"
UNUSED = "processor time of an unbatched produce, queues present but unused, times that without"
MEASUREMENTS = (
    Measurement(REDELIVERY_P50, "ms", {}),
    Measurement(REDELIVERY, "ms", {"": Target("<=", 20)}, judges="ours"),
    Measurement(EXPIRY, "ms", {"": Target("<=", 200)}, judges="ours"),
    Measurement(WAITING, "%", {"": Target("<=", 10)}, judges="ours"),
    Measurement(SPLIT, "MB", {"": Target("<=", 8)}, judges="ours"),
    Measurement(STUCK, "MB", {"": Target("<=", 1)}, judges="ours"),
    Measurement(SCHEDULE, "MB", {"": Target("<=", 20)}, judges="ours"),
    Measurement(UNUSED, "", {"": Target("<=", 1.02)}, judges="ours"),
)


def run(workspace: Workspace, say: Callable[[str], None]) -> Results:
    results = Results(MEASUREMENTS, [TidelogSubject.label])

    def add(what: str, value: float) -> None:
        results.add(what, "", TidelogSubject.label, value)
        say(f"  {what}: {value:.3g}")

    add(SPLIT, queues.megabytes_of_locks(workspace.scaled(queues.IN_FLIGHT)))
    add(STUCK, queues.megabytes_behind_a_stuck_record(workspace.scaled(STUCK_BEHIND)))
    with workspace.directory("service") as path:
        with started(path / "queues") as subject:
            rounds = range(workspace.rounds(QUIETEST_OF))
            count, receives = workspace.scaled(REDELIVERIES, 10), workspace.scaled(EXPIRY_RECEIVES, 3)
            found = [Percentiles.of(redeliveries_ms(subject, f"released-{each}", count)) for each in rounds]
            add(REDELIVERY_P50, min(each.p50 for each in found))
            add(REDELIVERY, min(each.p99 for each in found))
            add(EXPIRY, min(max(expiries_late_ms(subject, f"expired-{each}", receives)) for each in rounds))
        add(WAITING, waiting_percent(path / "waiting", workspace))
        with started(path / "scheduled") as subject:
            add(SCHEDULE, scheduled_megabytes(subject, workspace.scaled(SCHEDULED)))
        add(UNUSED, unused_ratio(path, workspace))
    return results


@contextmanager
def started(path: Path) -> Iterator[TidelogSubject]:
    subject = TidelogSubject(path)
    try:
        subject.start()
        yield subject
    finally:
        subject.kill()


def _create_queue(subject: Reachable, name: str, configs: Mapping[str, str] | None = None) -> None:
    create_topic(subject, name, {**QUEUE_TOPIC, **(configs or {})})


def _received(queue: Queue, jobs_max: int) -> tuple[list[Job], float]:
    jobs = queue.receive(jobs_max, RECEIVE_SECONDS_MAX)
    return jobs, perf_counter()


def redeliveries_ms(subject: TidelogSubject, name: str, count: int) -> list[float]:
    _create_queue(subject, name)
    milliseconds = []
    addresses = subject.bootstrap_servers
    with Queue(addresses, name) as first, Queue(addresses, name) as second, ThreadPoolExecutor(1) as waiter:
        second.receive(1)
        for _ in range(count):
            first.send(b"job").result()
            (job,) = first.receive(1, RECEIVE_SECONDS_MAX)
            redelivered = waiter.submit(_received, second, 1)
            sleep(UNDER_WAY_SECONDS)
            began = perf_counter()
            job.nack()
            jobs, at = redelivered.result()
            milliseconds.append((at - began) * 1000)
            second.ack(jobs)
    return milliseconds


def expiries_late_ms(subject: TidelogSubject, name: str, receives: int) -> list[float]:
    _create_queue(subject, name)
    addresses = subject.bootstrap_servers
    late: list[float] = []
    with (
        Queue(addresses, name, visibility_timeout=EXPIRY_SECONDS) as holder,
        Queue(addresses, name, visibility_timeout=EXPIRY_SECONDS) as next_one,
    ):
        next_one.receive(1)
        for number in range(receives * JOBS_PER_RECEIVE):
            holder.send(str(number))
        holder.flush()
        locked: dict[int, float] = {}
        held = []
        while len(locked) < receives * JOBS_PER_RECEIVE:
            began = perf_counter()
            jobs = holder.receive(JOBS_PER_RECEIVE, RECEIVE_SECONDS_MAX)
            held += jobs
            # What comes a second time was not taken away in time.
            locked.update((job.offset, began) for job in jobs)
        left = set(locked)
        while left:
            jobs, at = _received(next_one, JOBS_PER_RECEIVE * receives)
            late += [(at - locked[job.offset] - EXPIRY_SECONDS) * 1000 for job in jobs]
            left -= {job.offset for job in jobs}
            next_one.ack(jobs)
    return late


def waiting_percent(path: Path, workspace: Workspace) -> float:
    """The part of a core that the broker uses, in percent, if each worker asks as often as it would on a machine with room."""
    names = [f"waiting-{number}" for number in range(1 if workspace.is_quick else WAITING_QUEUES)]
    workers = workspace.scaled(WAITING_WORKERS, 4)
    with ExitStack() as stack:
        metrics = f"{HOST}:{stack.enter_context(reserve_port()).getsockname()[1]}"
        broker = stack.enter_context(Broker(persist=path, configs={"tidelog.metrics.listener": metrics}))
        for name in names:
            _create_queue(broker, name)
        command = [sys.executable, "-m", "bench.beside.queues.waiting_workers", broker.bootstrap_servers, str(workers), *names]
        processes = [
            stack.enter_context(subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(WAITING_PROCESSES)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                if process.stdout.readline().strip() != b"ready":
                    raise throughput.NotDelivered("the waiting workers did not start")
            began, fetches_began, cpu_began = monotonic(), _share_fetches(metrics), cpu_seconds(broker)
            sleep(1.0 if workspace.is_quick else WAITING_SECONDS)
            cpu, seconds = cpu_seconds(broker) - cpu_began, monotonic() - began
            fetches = _share_fetches(metrics) - fetches_began
        finally:
            for process in processes:
                process.kill()
    wanted = seconds * 1000 / FETCH_WAIT_MS * workers * len(names) * WAITING_PROCESSES
    return cpu / seconds * 100 * max(1.0, wanted / fetches)


def _share_fetches(metrics_address: str) -> int:
    """How many the broker has had so far."""
    with urllib.request.urlopen(f"http://{metrics_address}/metrics", timeout=WAIT_SECONDS_MAX) as answer:
        (line,) = [line for line in answer.read().decode().splitlines() if line.startswith(SHARE_FETCHES)]
    return int(float(line.split()[-1]))


def scheduled_megabytes(subject: TidelogSubject, count: int) -> float:
    _create_queue(subject, "scheduled", {"retention.ms": str((SCHEDULED_DAYS + 10) * DAY_MS)})
    producer = throughput.producer_of(subject, {**throughput.BATCHED, "batch.num.messages": 1_000})
    random, now_ms = Random(1), int(time() * 1000)
    for _ in range(count):
        due_ms = now_ms + random.randrange(DAY_MS, SCHEDULED_DAYS * DAY_MS)
        _produce(producer, "scheduled", b"job", {DUE_HEADER: str(due_ms)})
    # It is due at once, and behind all of them.
    _produce(producer, "scheduled", b"last", {})
    if producer.flush(WAIT_SECONDS_MAX):
        raise throughput.NotDelivered(f"{len(producer)} messages")
    before = resident_mebibytes(subject)
    with Queue(subject.bootstrap_servers, "scheduled") as queue:
        deadline = monotonic() + WAIT_SECONDS_MAX
        while not (jobs := queue.receive(1, 1.0)):
            if monotonic() > deadline:
                raise throughput.NotDelivered("the message behind the scheduled ones")
        queue.ack(jobs)
        return (resident_mebibytes(subject) - before) * (1 << 20) / 1e6


def _produce(producer: Producer, topic: str, value: bytes, headers: dict[str, str]) -> None:
    while True:
        try:
            producer.produce(topic, value, headers=headers)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return


def unused_ratio(path: Path, workspace: Workspace) -> float:
    """Quietest round beside quietest round."""
    count = workspace.scaled(UNUSED_REQUESTS)
    with started(path / "without") as without, started(path / "with") as present:
        _create_queue(present, "queue")
        with Queue(present.bootstrap_servers, "queue") as queue:
            queue.send(b"job").result()
            queue.ack(queue.receive(1, RECEIVE_SECONDS_MAX))
        quietest: dict[TidelogSubject, float] = {}
        for subject in (without, present):
            create_topic(subject, "plain", PAGE_CACHE)
        for number in range(workspace.rounds(UNUSED_ROUNDS)):
            for subject in (without, present) if number % 2 else (present, without):
                began = cpu_seconds(subject)
                throughput.produce_rate(subject, "plain", VALUE, count, throughput.UNBATCHED)
                spent = cpu_seconds(subject) - began
                quietest[subject] = min(spent, quietest.get(subject, spent))
        return quietest[present] / quietest[without]
