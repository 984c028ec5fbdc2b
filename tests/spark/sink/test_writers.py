"""A task's first words to the cluster, when a broker restarts at that moment."""

from typing import Any

import pytest

from tidelog.client.errors import BrokerUnavailable, TidelogError
from tidelog.client.transactions.errors import BrokerUnreachable
from tidelog.spark.sink import writers
from tidelog.spark.sink.job import Start
from tidelog.spark.sink.writers import Execution, _started

EXECUTION = Execution("job", "run", 3)


class JobThatFails:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked: list[tuple[str, int]] = []

    def start(self, run: str, batch: int) -> Start:
        self.asked.append((run, batch))
        if self.errors:
            raise self.errors.pop(0)
        return Start(1, False)


def started(job: Any) -> Start:
    return _started(job, EXECUTION)


def test_it_is_said_again_until_somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ABSENCE_PAUSE_SECONDS", 0.0)
    job = JobThatFails(BrokerUnavailable("nobody"), BrokerUnreachable("nobody"))
    assert started(job) == Start(1, False)
    assert job.asked == [("run", 3)] * 3


def test_nobody_for_too_long_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ABSENCE_SECONDS_MAX", -1.0)
    with pytest.raises(BrokerUnavailable, match="nobody"):
        started(JobThatFails(BrokerUnavailable("nobody")))


def test_any_other_error_is_not_waited_for() -> None:
    job = JobThatFails(TidelogError("superseded"))
    with pytest.raises(TidelogError, match="superseded"):
        started(job)
    assert len(job.asked) == 1
