"""WorkerOptions: what makes no sense is refused by name, and settings go to the clients that they are for."""

from typing import Any

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.worker import CircuitBreaker, Worker
from tidelog.worker.options import WorkerOptions


def options(**given: Any) -> WorkerOptions:
    return Worker("127.0.0.1:9092", **{"group": "email", "topics": ["orders"], **given})._options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": ""}, "group="),
        ({"group": "a b"}, "the group 'a b'"),
        ({"topics": []}, "topics="),
        ({"topics": ["a", "a"]}, "topics="),
        ({"order": "random"}, "order="),
        ({"concurrency": 0}, "concurrency="),
        ({"concurrency": True}, "concurrency="),
        ({"retries": -1}, "retries="),
        ({"retries": 2.5}, "retries="),
        ({"in_place_retries": 100}, "in_place_retries="),
        ({"backoff": 3}, "backoff="),
        ({"drain_timeout": 0}, "drain_timeout="),
        ({"retriable": OSError}, None),
        ({"retriable": (3,)}, "retriable="),
        ({"retriable": "OSError"}, "retriable="),
        ({"circuit_breaker": True}, "circuit_breaker="),
        ({"circuit_breaker": CircuitBreaker(failures=0)}, "failures >= 1"),
        ({"config": {"group.id": "x"}}, "group.id"),
        ({"config": {"enable.auto.commit": True}}, "enable.auto.commit"),
        ({"config": {"bootstrap.servers": "x"}}, "bootstrap.servers"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], words: str | None) -> None:
    if words is None:
        options(**given)
        return
    with pytest.raises(InvalidArgument, match=words.replace("(", r"\(")):
        options(**given)


def test_settings_of_connections_are_for_all_clients() -> None:
    config = {"security.protocol": "ssl", "ssl.ca.location": "ca", "fetch.min.bytes": 7, "auto.offset.reset": "latest"}
    found = options(config=config, instance_id="one")
    consumer = {**found.consumer_defaults(), **found.config}
    assert (consumer["fetch.min.bytes"], consumer["auto.offset.reset"], consumer["group.instance.id"]) == (7, "latest", "one")
    assert (consumer["ssl.ca.location"], consumer["enable.auto.commit"]) == ("ca", False)
    assert found.connection_config() == {"security.protocol": "ssl", "ssl.ca.location": "ca"}


def test_a_full_queue_is_looked_at_again_soon() -> None:
    """With librdkafka's second, a worker that reads ahead little of large messages handles a few of them a second."""
    backoff_ms = options().consumer_defaults()["fetch.queue.backoff.ms"]
    assert isinstance(backoff_ms, int)
    assert backoff_ms <= 50


def test_keys_need_partitions_of_one_number_in_one_member() -> None:
    assert options(order="key").consumer_defaults()["partition.assignment.strategy"] == "range"
    assert options().consumer_defaults()["partition.assignment.strategy"] == "cooperative-sticky"
