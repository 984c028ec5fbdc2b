"""A process's first words to the cluster, when a broker restarts at that moment: a task's, and the driver's at a commit."""

import threading

import pytest

from tidelog.client.errors import BrokerUnavailable, TidelogError
from tidelog.client.wire.errors import BrokerUnreachable
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink import writers
from tidelog.spark.sink.connections import SinkConnections, forget_connections
from tidelog.spark.sink.job import SinkJob
from tidelog.spark.sink.names import query_job
from tidelog.spark.sink.writers import SinkExecution, TaskMessage, _commit, _patiently
from tidelog.testing import Broker

EXECUTION = SinkExecution(query_job("3f0c9a52-9f5e-4b0e-8d0e-0c6a7a1d2b11"), "run", 3)


class WordsThatFail:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.said = 0

    def __call__(self) -> str:
        self.said += 1
        if self.errors:
            raise self.errors.pop(0)
        return "heard"


def test_they_are_said_again_until_somebody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ABSENCE_PAUSE_SECONDS", 0.0)
    words = WordsThatFail(BrokerUnavailable("nobody"), BrokerUnreachable("nobody"))
    assert _patiently(words) == "heard"
    assert words.said == 3


def test_nobody_for_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "ABSENCE_SECONDS_MAX", -1.0)
    with pytest.raises(BrokerUnavailable, match="nobody"):
        _patiently(WordsThatFail(BrokerUnavailable("nobody")))


def test_any_other_error_is_not_waited_for() -> None:
    words = WordsThatFail(TidelogError("superseded"))
    with pytest.raises(TidelogError, match="superseded"):
        _patiently(words)
    assert words.said == 1


@pytest.mark.tidelog_only
def test_a_commit_waits_for_a_broker_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, committed = threading.Event(), threading.Event()
    greet = SinkConnections.greet

    def noted(connections: SinkConnections) -> None:
        try:
            greet(connections)
        except BrokerUnreachable:
            refused.set()
            raise

    monkeypatch.setattr(SinkConnections, "greet", noted)
    monkeypatch.setattr(SinkJob, "commit", lambda *_: committed.set())
    with Broker() as broker:
        options = SinkOptions.parse({"bootstrap": broker.bootstrap_servers, "topic": "t"})
        broker.kill()
        driver = threading.Thread(target=_commit, args=(options, [TaskMessage(EXECUTION, None)]))
        driver.start()
        assert refused.wait(writers.ABSENCE_SECONDS_MAX)
        assert not committed.is_set()
        broker.start()
        driver.join(writers.ABSENCE_SECONDS_MAX)
        assert committed.is_set()
        forget_connections(options)
