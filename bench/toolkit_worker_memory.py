"""``toolkit-worker-memory``: what the memory of a worker grows by while it works for long, in MiB.

A process of its own has nothing but a worker: by key, some messages retried, some dead-lettered, so that letters, blocked keys,
commits with metadata and waiting messages all come and go. Messages come at a steady rate from the process that measures.
Resident memory is read every second; the growth is the median of the last tenth minus the median of the tenth after the warm-up,
in which pools, caches and allocators find their size. The target is meant for ten minutes: ``--minutes 10``.
"""

import json
import logging
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.broker_process import WAIT_SECONDS_MAX, create_topic
from bench.measure import Figure, Row, Target
from bench.workspace import Workspace
from tidelog.client.message import Message
from tidelog.ports.child import end_with_parent
from tidelog.testing import Broker
from tidelog.worker import Backoff, Worker

TOPIC = "bench"
GROUP = "memory"
PARTITIONS = 4
KEYS = 1_000
PER_SECOND = 1_000
VALUE_BYTES = 200
TICK_SECONDS = 0.02
WARM_UP_SHARE = 0.2
GROWTH_MIB_MAX = 4.0
KIB_PER_MIB = 1024


def run(workspace: Workspace) -> list[Row]:
    seconds = workspace.long_seconds
    with workspace.directory("worker") as path, Broker(persist=path) as broker:
        create_topic(broker, TOPIC, PARTITIONS)
        samples, handled = _samples(broker, seconds)
        broker.kill()
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    tenth = max(len(samples) // 10, 1)
    growth = statistics.median(warm[-tenth:]) - statistics.median(warm[:tenth])
    what = (
        f"worker: memory that it grows by in {seconds:,.0f} s and {handled:,} messages, of which 2 in 100 are retried and 1 is "
        f"dead; raw: all that it has"
    )
    target = Target("<=", GROWTH_MIB_MAX)
    return [Row(what, Figure(growth, 0.0), "MiB", Figure(statistics.median(warm[-tenth:]), 0.0), None, target)]


def _samples(broker: Broker, seconds: float) -> tuple[list[float], int]:
    """Resident MiB over time, and how many messages the worker handled."""
    command = [sys.executable, "-m", "bench.toolkit_worker_memory", json.dumps({"bootstrap": broker.bootstrap_servers})]
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 5})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the worker did not start"
            samples = _load(producer, process.pid, seconds)
            process.terminate()
            handled = json.loads(process.stdout.readline())["handled"]
        finally:
            process.kill()
    assert handled, "nothing was handled"
    return samples, handled


def _load(producer: Producer, pid: int, seconds: float) -> list[float]:
    samples: list[float] = []
    begin = time.perf_counter()
    sent = 0
    # At least ten samples, however short the run.
    every = min(1.0, seconds / 10)
    while (passed := time.perf_counter() - begin) < seconds:
        while sent < passed * PER_SECOND:
            producer.produce(TOPIC, bytes(VALUE_BYTES), f"key-{sent % KEYS}", headers=[("number", str(sent))])
            sent += 1
        producer.poll(0)
        if passed >= len(samples) * every:
            samples.append(_resident_mib(pid))
        time.sleep(TICK_SECONDS)
    assert not producer.flush(WAIT_SECONDS_MAX), "not everything was written"
    return samples


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / KIB_PER_MIB
    raise RuntimeError("the worker has ended")


def _make_worker(settings: dict[str, Any]) -> Worker:
    worker = Worker(
        settings["bootstrap"],
        group=GROUP,
        topics=[TOPIC],
        order="key",
        retries=2,
        backoff=Backoff(base=0.2, cap=1.0),
        circuit_breaker=None,
    )

    @worker.handler
    def handle(message: Message) -> None:
        number = int((message.headers["number"] or b"").decode())
        is_first = "tidelog.attempts" not in message.headers
        if number % 100 == 0 or (number % 50 == 1 and is_first):
            raise OSError(f"{number} fails")

    return worker


def main() -> int:
    """The worker's process: says when it has joined, and at the end how many messages it handled."""
    settings = json.loads(sys.argv[1])
    end_with_parent()
    # One line for each dead letter.
    logging.disable(logging.ERROR)
    worker = _make_worker(settings)

    def say_ready() -> None:
        while not worker.is_joined:
            time.sleep(TICK_SECONDS)
        print("ready", flush=True)

    threading.Thread(target=say_ready, name="ready", daemon=True).start()
    worker.run()
    print(json.dumps({"handled": worker.metrics().handled}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
