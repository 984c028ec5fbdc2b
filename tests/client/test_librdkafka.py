"""Settings: ours, then the caller's, and what would break a promise is refused."""

import pytest

from tidelog.client.errors import InvalidArgument
from tidelog.client.librdkafka import bootstrap_addresses, librdkafka_configuration


def test_the_callers_settings_win_over_ours() -> None:
    found = librdkafka_configuration("host:9092", {"linger.ms": 7}, {"linger.ms": 5, "acks": -1})
    assert found["linger.ms"] == 7
    assert found["acks"] == -1
    assert found["bootstrap.servers"] == "host:9092"
    assert found["log_level"] == 0


def test_addresses_come_in_one_text_or_in_several() -> None:
    assert bootstrap_addresses(" one:9092, two:9092 ") == "one:9092,two:9092"
    assert bootstrap_addresses(["one:9092", "two:9092"]) == "one:9092,two:9092"


@pytest.mark.parametrize("bootstrap", ["", " ", ",", "one:9092,", [], ["one:9092", ""]])
def test_no_address_is_refused(bootstrap: str | list[str]) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        bootstrap_addresses(bootstrap)


def test_a_setting_that_would_break_a_promise_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match=r"must not have enable\.idempotence: use idempotent="):
        librdkafka_configuration("h:1", {"enable.idempotence": False}, {}, refused={"enable.idempotence": "use idempotent="})
    with pytest.raises(InvalidArgument, match=r"bootstrap\.servers: it is the first argument"):
        librdkafka_configuration("h:1", {"bootstrap.servers": "other:1"}, {})
    with pytest.raises(InvalidArgument, match="names of librdkafka's settings"):
        librdkafka_configuration("h:1", {7: "x"}, {})  # type: ignore[dict-item]  # what a caller without types may do
