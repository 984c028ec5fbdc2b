"""A short run of chaos, and what its judge finds in a history that is not right."""

import os
from typing import cast

import pytest

from tests.faults import chaos
from tests.faults.chaos import PARTITIONS, STEADY, Acknowledged, Report, Writer
from tidelog.testing import Cluster


@pytest.mark.soak
def test_a_short_run() -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    with Cluster(3) as cluster:
        report, history = chaos.run(cluster, seed, 60)
    print(report.text())
    assert report.problems == []
    assert report.faults
    assert len(history.splitlines()) == len(report.faults) + report.acknowledged


class Heard:
    """A writer that is over."""

    def __init__(self, acknowledged: list[Acknowledged]) -> None:
        self.topic = STEADY
        self.acknowledged = acknowledged
        self.problems: list[str] = []


PLACES = {(number % PARTITIONS, number // PARTITIONS): number for number in range(9)}
RIGHT = [Acknowledged(0.0, 0.5 if number else 2.0, place, number) for place, number in PLACES.items()]
# Its offset is not known: the acknowledgement was lost.
RIGHT[8] = RIGHT[8]._replace(place=(8 % PARTITIONS, None))


def judged(monkeypatch: pytest.MonkeyPatch, found: dict[tuple[int, int], int]) -> Report:
    class NoSettings:
        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> "NoSettings":
            return self

        def __exit__(self, *_: object) -> None: ...

        def describe_configs(self, *_: object) -> dict[str, object]:
            return {}

    monkeypatch.setattr(chaos, "Admin", NoSettings)
    monkeypatch.setattr(chaos, "_everything", lambda *_: found)
    report = Report(1, seconds=60.0, faults=[(0.0, "kill of 1")])
    cluster = cast("Cluster", type("Cluster", (), {"bootstrap_servers": ""}))
    chaos._judge(cluster, [cast("Writer", Heard(RIGHT))], report)
    return report


def test_the_judge_finds_what_is_missing_doubled_and_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    found = PLACES
    report = judged(monkeypatch, found)
    assert (report.problems, report.acknowledged, report.late, report.latest_seconds) == ([], 9, 1, 2.0)
    assert report.availability_at_one_fault_a_day == pytest.approx(1 - 60 / 9 / 86_400)
    assert judged(monkeypatch, {**found, (0, 3): 99}).problems == [], "what was not acknowledged may be there"
    assert "orders-1 has None at offset 2, where 7" in judged(monkeypatch, {k: v for k, v in found.items() if v != 7}).problems[0]
    assert judged(monkeypatch, {**found, (2, 2): 99}).problems == [f"{STEADY}-2 does not have 8, which was acknowledged"]
    assert judged(monkeypatch, {**found, (0, 3): 6}).problems == ["orders-0 has numbers twice or out of order"]
    assert judged(monkeypatch, {**found, (0, 3): 1}).problems == ["orders-0 has numbers twice or out of order"]
