"""A process's first words to the cluster, when a broker restarts at that moment: a task's, and the driver's at a commit."""

import threading

import pytest

from tidelog.client.admin import Admin
from tidelog.client.errors import BrokerUnavailable, InvalidArgument, TidelogError
from tidelog.client.wire.errors import BrokerUnreachable, SecurityRequired
from tidelog.spark.options import SinkOptions
from tidelog.spark.sink import writers
from tidelog.spark.sink.connections import SinkConnections, connection_settings, forget_connections, own_compression
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
    words = WordsThatFail(BrokerUnavailable("nobody"), BrokerUnreachable("nobody"), SecurityRequired("it may require TLS"))
    assert _patiently(words) == "heard"
    assert words.said == 4


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


@pytest.mark.tidelog_only
def test_after_the_greeting_every_connection_waits_for_a_broker_that_was_killed() -> None:
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("t", partitions=3)
        connections = SinkConnections(SinkOptions.parse({"bootstrap": broker.bootstrap_servers, "topic": "t"}))
        connections.greet()
        broker.kill()
        found: list[int] = []
        task = threading.Thread(target=lambda: found.append(connections.partitions_of("t")))
        task.start()
        broker.start()
        task.join(writers.ABSENCE_SECONDS_MAX)
        assert found == [3]
        connections.close()


# -- how it connects -----------------------------------------------------------------------------------------------------------


def sink_options(**settings: str) -> SinkOptions:
    return SinkOptions.parse(
        {"bootstrap": "127.0.0.1:1", "topic": "t", **{f"kafka.{name}": value for name, value in settings.items()}}
    )


def test_settings_of_the_connection_leave_the_writing_to_us_and_are_heeded() -> None:
    given = {
        "client.id": "loader",
        "socket.connection.setup.timeout.ms": "1500",
        "socket.timeout.ms": "9000",
        "client.rack": "r1",
    }
    options = sink_options(**given)
    settings = dict(options.connection.settings)
    assert own_compression(settings) is not None, "librdkafka would write"
    own = connection_settings(settings)
    assert (own.client_id, own.connect_timeout_ms, own.timeout_ms) == ("loader", 1500, 9000)
    connections = SinkConnections(options)
    brokers = connections.lookup.brokers
    assert connections.admin._brokers is brokers
    assert (brokers._client_id, brokers._connect_seconds_max, brokers.request_seconds_max) == ("loader", 1.5, 9.0)
    connections.close()
    assert connection_settings({}).client_id == "tidelog-spark"


def test_that_librdkafka_writes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    writers._log_librdkafka.cache_clear()
    for _ in range(2):
        writers._check(sink_options(**{"linger.ms": "5"}))
        writers._check(sink_options(**{"socket.nagle.disable": "true"}))
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["socket.nagle.disable"]


def test_a_time_out_that_makes_no_sense_is_refused_in_the_driver() -> None:
    with pytest.raises(InvalidArgument, match=r"^option kafka\.socket\.timeout\.ms is a number from 100 to 600000: not 'soon'"):
        writers._check(sink_options(**{"socket.timeout.ms": "soon"}))
