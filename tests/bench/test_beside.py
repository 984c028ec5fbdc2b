"""The comparison with other brokers: what becomes of its values, and that it runs; the figures are for ``make bench-kafka``."""

from array import array
from pathlib import Path

import pytest

from bench.beside import kafka, pauses
from bench.beside.document import MarksMissing, comparison_tables, replace_part
from bench.beside.latency import Arrivals, Percentiles
from bench.beside.peers.tidelog_queue import TidelogQueue
from bench.beside.queues import brokers, service, share_consumers
from bench.beside.results import Measurement, Results
from bench.beside.subjects import CompiledTidelogSubject, KafkaSubject, TidelogSubject
from bench.measure import Target
from bench.workspace import workspace

MEASUREMENTS = (
    Measurement("rate", "msg/s", {"page cache": Target(">=", 1.0)}),
    Measurement("memory", "MiB", {"page cache": Target("<=", 80)}, judges="ours"),
)


def test_ratios_are_of_pairs_and_judged() -> None:
    results = Results(MEASUREMENTS, ["ours", "theirs"])
    for ours, theirs in ((100, 100), (200, 400), (90, 30)):
        results.add("rate", "page cache", "ours", ours)
        results.add("rate", "page cache", "theirs", theirs)
    ((durability, row),) = results.rows()
    assert (durability, row.ratio and row.ratio.value, row.verdict) == ("page cache", 1.0, "ok")
    results.add("rate", "page cache", "ours", 1)
    results.add("rate", "page cache", "theirs", 1000)
    ((_, row),) = results.rows()
    assert row.verdict == "short"


def test_alone_a_ratio_is_not_judged_but_a_figure_of_our_own_is() -> None:
    results = Results(MEASUREMENTS, ["ours"])
    results.add("rate", "page cache", "ours", 5)
    results.add("memory", "page cache", "ours", 81)
    assert [row.verdict for _, row in results.rows()] == ["-", "short"]
    assert "| memory | 81 MiB |  | <= 80 MiB | short |" in comparison_tables(results)


def test_each_build_is_judged_by_its_own_targets_and_both_by_limits() -> None:
    kinds: kafka.Kinds = [TidelogSubject, CompiledTidelogSubject, KafkaSubject]
    pure, compiled, theirs = (kind.label for kind in kinds)
    results = Results(kafka.MEASUREMENTS, [pure, compiled, theirs])
    for what, values in (
        ("unbatched requests, one connection", (30, 40, 10)),
        ("end to end at 5 k msg/s, acks=1, p99", (3, 4.5, 10)),
    ):
        for label, value in zip(results.labels, values, strict=True):
            results.add(what, "page cache", label, value)
    shown = kafka.tables(results, kinds)
    assert "| unbatched requests, one connection | 30 /s | 10 /s | 3.00 | >= 3 | ok |" in shown
    assert "| unbatched requests, one connection | 40 /s | 10 /s | 4.00 | >= 5 | short |" in shown
    assert "| end to end at 5 k msg/s, acks=1, p99 | 3 ms | 10 ms | 0.30 | <= 0.5 and <= 4 ms | ok |" in shown
    assert "| end to end at 5 k msg/s, acks=1, p99 | 4.5 ms | 10 ms | 0.45 | <= 0.5 and <= 4 ms | short |" in shown
    assert shown.index("**Page cache**") < shown.index("**Page cache, compiled**")


def test_percentiles() -> None:
    found = Percentiles.of([float(number) for number in range(1000)])
    assert found == Percentiles(500, 900, 990, 999, 999, mean=499.5)


def test_a_pause_shows_over_time_and_is_found_with_what_was_seen(tmp_path: Path) -> None:
    """A message each millisecond. Those that were sent in the 30 ms from 200 ms on arrive together."""
    sent = array("q", [number * 1_000_000 for number in range(500)])
    arrived = array("q", [max(at + 500_000, 230_000_000) if 200 <= at // 1_000_000 < 230 else at + 500_000 for at in sent])
    arrivals = Arrivals(sent, arrived)
    assert [interval.max_ms for interval in arrivals.over_time()] == [0.5, 0.5, 30.0, 0.5, 0.5]
    assert arrivals.longest_gap_ms() == pytest.approx(30.5)
    (pause,) = pauses.find_pauses(arrivals)
    assert pause == pauses.Pause(200_000_000, 230_000_000, 30.0)
    watch = pauses.Watch(tmp_path, "nowhere")
    watch.seen += [
        pauses.Seen(at * 1_000_000, what) for at, what in ((100, "before"), (190, "a roll"), (215, "a roll"), (300, "after"))
    ]
    assert watch.at(pause) == ["a roll"]
    report = pauses.Report(arrivals, [pause], watch, 0.1)
    assert "| 0.20 s | 30.0 ms | a roll |" in report.text()


def test_pauses_are_measured_on_a_real_broker(tmp_path: Path) -> None:
    with workspace(tmp_path, is_quick=True) as place:
        report = pauses.run(place, lambda _: None)
    assert report.arrivals.percentiles().p50 > 0
    seen = {seen.what for seen in report.watch.seen}
    assert {"/metrics was scraped", "paced: a segment was rolled"} <= seen
    assert report.watch.scraped_bytes > 0


def test_only_the_part_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- kafka: begin -->\nold\n<!-- kafka: end -->\nafter\n")
    replace_part("kafka", "new", page)
    assert page.read_text() == "before\n<!-- kafka: begin -->\nnew\n<!-- kafka: end -->\nafter\n"
    with pytest.raises(MarksMissing, match="peers: begin"):
        replace_part("peers", "new", page)


def test_tidelog_is_measured_alone_where_there_is_no_kafka(tmp_path: Path) -> None:
    with workspace(tmp_path, is_quick=True) as place:
        results = kafka.run(place, [TidelogSubject], lambda _: None)
    measured = {row.what for _, row in results.rows()}
    assert measured == {measurement.what for measurement in kafka.MEASUREMENTS}
    assert all(row.ours.value > 0 for _, row in results.rows())
    assert not list(tmp_path.iterdir())


def test_queues_are_measured_on_a_real_broker(tmp_path: Path) -> None:
    """Beside nobody: Kafka takes its time to start, and the peers may not be installed."""
    with workspace(tmp_path, is_quick=True) as place:
        results = share_consumers.run(place, [TidelogSubject], lambda _: None)
        measured = [row.what for _, row in results.rows()]
        assert measured == [measurement.what for measurement in share_consumers.MEASUREMENTS] * 2
        with place.directory("queue") as path:
            figures = brokers.measure(TidelogQueue(path, is_queue_topic=True), 500, 5)
        with place.directory("service") as path, service.started(path) as subject:
            assert min(service.redeliveries_ms(subject, "released", 2)) > 0
            assert min(service.expiries_late_ms(subject, "expired", 1)) > 0
            service.scheduled_megabytes(subject, 2_000)
        with place.directory("waiting") as path:
            assert service.waiting_percent(path, place) > 0
    assert all(row.ours.value > 0 for _, row in results.rows())
    assert "| Tidelog, queue topic | fsynced |" in brokers.tables([figures, *[None] * (len(brokers.KINDS) - 1)])
    assert not list(tmp_path.iterdir())
