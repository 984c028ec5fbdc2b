"""Tidelog, pure Python and compiled, beside Apache Kafka: one librdkafka client, the same topic settings, rounds that alternate.

All brokers run all the time, idle while another works, and each measurement goes to all before the next begins; who goes first
changes with the round. The first round warms up and is dropped: a cold JVM is half as fast. Each measurement has a topic of its
own, deleted afterwards, so that the page cache does not fill with what nobody reads again.

Where Java or Maven is missing Tidelog is measured alone; where there is no C compiler, only as pure Python.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, replace
from itertools import count as count_up
from time import perf_counter, sleep

from bench.beside import latency, throughput
from bench.beside.document import comparison_tables
from bench.beside.results import Measurement, Results
from bench.beside.subjects import (
    FSYNCED,
    PAGE_CACHE,
    CompiledTidelogSubject,
    KafkaSubject,
    Subject,
    TidelogSubject,
    create_topic,
    delete_topic,
)
from bench.broker import cached_bytecode
from bench.broker_process import cpu_seconds, resident_mebibytes
from bench.measure import Target
from bench.workspace import Workspace

ROUNDS = 4  # of which the first is dropped
START_ROUNDS = 3
IDLE_SECONDS = 2.0
END_TO_END_PER_SECOND = 5_000
# Without group commit a broker that syncs falls behind, and takes many times as long as this to deliver what was sent.
END_TO_END_SECONDS = {"page cache": 5.0, "fsynced": 2.5}
SMALL, LARGE = b"s" * 100, b"l" * 1000
COUNTS = {SMALL: 1_000_000, LARGE: 200_000}
REQUESTS = 15_000
SINGLE = 2_000
DURABILITIES: Mapping[str, Mapping[str, str]] = {"page cache": PAGE_CACHE, "fsynced": FSYNCED}

MEASUREMENTS = (
    Measurement("produce 100 B", "msg/s", {"page cache": Target(">=", 1.0), "fsynced": Target(">=", 1.2)}),
    Measurement("produce 1 KB", "msg/s", {"page cache": Target(">=", 1.0), "fsynced": Target(">=", 1.5)}),
    Measurement("consume 100 B", "msg/s", {"page cache": Target(">=", 1.0)}),
    Measurement("consume 1 KB", "msg/s", {"page cache": Target(">=", 1.0)}),
    Measurement(
        "unbatched requests, one connection",
        "/s",
        {"page cache": Target(">=", 3.0), "fsynced": Target(">=", 6.0)},
        compiled={"page cache": Target(">=", 5.0), "fsynced": Target(">=", 12.0)},
    ),
    Measurement("produce to ack, unbatched, p50", "ms", {}),
    Measurement("produce to ack, unbatched, p99", "ms", {"page cache": Target("<=", 1.0), "fsynced": Target("<=", 1.0)}),
    *(
        measurement
        for acks in ("1", "all")
        for what in (f"end to end at 5 k msg/s, acks={acks}",)
        for measurement in (
            Measurement(f"{what}, p50", "ms", {}),
            Measurement(
                f"{what}, p99",
                "ms",
                {"page cache": Target("<=", 0.5), "fsynced": Target("<=", 0.1)},
                limits={"page cache": Target("<=", 4), "fsynced": Target("<=", 10)},
            ),
            Measurement(f"{what}, p99.9", "ms", {"page cache": Target("<=", 10)}, judges="ours"),
            Measurement(f"{what}, longest", "ms", {}),
            Measurement(f"{what}, longest time without a message", "ms", {}),
        )
    ),
    Measurement("broker's processor time per million messages of 100 B in", "s", {}),
    Measurement("broker's processor time per million messages of 100 B out", "s", {}),
    Measurement("start to first acknowledged message", "s", {"page cache": Target("<=", 0.35)}, judges="ours"),
    Measurement("idle memory", "MiB", {"page cache": Target("<=", 60)}, judges="ours"),
    Measurement("memory after the load", "MiB", {"page cache": Target("<=", 200)}, judges="ours"),
)

Kinds = list[type[TidelogSubject] | type[KafkaSubject]]

_topic_numbers = count_up()


def tables(results: Results, kinds: Kinds) -> str:
    """Each build of ours beside Kafka, by its own targets."""
    theirs = [kind.label for kind in kinds if not issubclass(kind, TidelogSubject)]
    parts = []
    for kind in kinds:
        if kind is CompiledTidelogSubject:
            measurements = [replace(each, targets={**each.targets, **each.compiled}) for each in MEASUREMENTS]
            parts.append(comparison_tables(results.of([kind.label, *theirs], measurements), ", compiled"))
        elif issubclass(kind, TidelogSubject):
            parts.append(comparison_tables(results.of([kind.label, *theirs], MEASUREMENTS)))
    return "\n\n".join(parts)


def run(workspace: Workspace, kinds: Kinds, say: Callable[[str], None]) -> Results:
    results = Results(MEASUREMENTS, [kind.label for kind in kinds])
    with workspace.directory("bytecode") as bytecode, cached_bytecode(bytecode):
        _starts(workspace, kinds, results, say)
        with _running(workspace, kinds) as subjects:
            for number in range(workspace.rounds(ROUNDS)):
                in_turn = subjects if number % 2 else subjects[::-1]
                counted = results if number or workspace.is_quick else Results(MEASUREMENTS, results.labels)
                began = perf_counter()
                _round(workspace, in_turn, counted)
                say(f"  round {number}{'' if counted is results else ' (to warm up, dropped)'}: {perf_counter() - began:.0f} s")
            for subject in subjects:
                results.add("memory after the load", "page cache", subject.label, resident_mebibytes(subject))
    return results


def _starts(
    workspace: Workspace,
    kinds: Kinds,
    results: Results,
    say: Callable[[str], None],
) -> None:
    for _ in range(workspace.rounds(START_ROUNDS)):
        for kind in kinds:
            with workspace.directory("start") as path:
                subject: Subject = kind(path)
                try:
                    began = perf_counter()
                    subject.start()
                    throughput.send_one(subject, "first", SMALL)
                    results.add("start to first acknowledged message", "page cache", subject.label, perf_counter() - began)
                    sleep(0 if workspace.is_quick else IDLE_SECONDS)
                    results.add("idle memory", "page cache", subject.label, resident_mebibytes(subject))
                finally:
                    subject.kill()
    say("  starts: done")


@contextmanager
def _running(workspace: Workspace, kinds: Kinds) -> Iterator[list[Subject]]:
    with workspace.directory("brokers") as path:
        subjects: list[Subject] = []
        try:
            for kind in kinds:
                subject: Subject = kind(path / kind.name)
                subjects.append(subject)
                subject.start()
            yield subjects
        finally:
            for subject in subjects:
                subject.kill()


def _round(workspace: Workspace, subjects: list[Subject], results: Results) -> None:
    for durability, configs in DURABILITIES.items():
        for value, size in ((SMALL, "100 B"), (LARGE, "1 KB")):
            for subject in subjects:
                _messages(workspace, subject, durability, configs, value, size, results)
        for subject in subjects:
            with _topic(subject, configs) as topic:
                count = workspace.scaled(REQUESTS if durability == "page cache" else REQUESTS // 5)
                rate = throughput.produce_rate(subject, topic, SMALL, count, throughput.UNBATCHED)
                results.add("unbatched requests, one connection", durability, subject.label, rate)
        for subject in subjects:
            with _topic(subject, configs) as topic:
                found = latency.produce_to_ack(subject, topic, SMALL, workspace.scaled(SINGLE))
                results.add("produce to ack, unbatched, p50", durability, subject.label, found.p50)
                results.add("produce to ack, unbatched, p99", durability, subject.label, found.p99)
                results.add_percentiles(f"produce to ack ({durability})", subject.label, asdict(found))
        for acks in ("1", "all"):
            for subject in subjects:
                _end_to_end(workspace, subject, durability, configs, acks, results)


def _messages(
    workspace: Workspace, subject: Subject, durability: str, configs: Mapping[str, str], value: bytes, size: str, results: Results
) -> None:
    count = workspace.scaled(COUNTS[value])
    with _topic(subject, configs) as topic:
        cpu_began = cpu_seconds(subject)
        rate = throughput.produce_rate(subject, topic, value, count, throughput.BATCHED)
        results.add(f"produce {size}", durability, subject.label, rate)
        cpu_in = cpu_seconds(subject) - cpu_began
        if durability != "page cache":
            return
        rate = throughput.consume_rate(subject, topic, count)
        results.add(f"consume {size}", durability, subject.label, rate)
        cpu_out = cpu_seconds(subject) - cpu_began - cpu_in
    if value is SMALL:
        results.add("broker's processor time per million messages of 100 B in", durability, subject.label, cpu_in / count * 1e6)
        results.add("broker's processor time per million messages of 100 B out", durability, subject.label, cpu_out / count * 1e6)


def _end_to_end(
    workspace: Workspace, subject: Subject, durability: str, configs: Mapping[str, str], acks: str, results: Results
) -> None:
    seconds = 0.5 if workspace.is_quick else END_TO_END_SECONDS[durability]
    with _topic(subject, {**configs, **latency.SMALL_SEGMENTS}) as topic:
        arrivals = latency.end_to_end(subject, topic, len(SMALL), END_TO_END_PER_SECOND, seconds, acks)
    found = arrivals.percentiles()
    for share, value in (
        ("p50", found.p50),
        ("p99", found.p99),
        ("p99.9", found.p999),
        ("longest", found.maximum),
        ("longest time without a message", arrivals.longest_gap_ms()),
    ):
        results.add(f"end to end at 5 k msg/s, acks={acks}, {share}", durability, subject.label, value)
    what = f"end to end, acks={acks} ({durability})"
    results.add_percentiles(what, subject.label, asdict(found))
    results.set_over_time(what, subject.label, [astuple(interval) for interval in arrivals.over_time()])


@contextmanager
def _topic(subject: Subject, configs: Mapping[str, str]) -> Iterator[str]:
    topic = f"bench-{next(_topic_numbers)}"
    create_topic(subject, topic, configs)
    yield topic
    delete_topic(subject, topic)
