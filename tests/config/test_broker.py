"""A broker's settings: defaults for a laptop, and what makes no sense is refused before anything is started."""

import pytest

from tidelog.config.broker import BROKER, advertised_listener_of, data_directory_of, listener_of
from tidelog.config.definition import parse
from tidelog.config.listeners import ListenerAddress
from tidelog.config.types import InvalidSetting

BOUND = ListenerAddress("127.0.0.1", 4711)


def test_defaults() -> None:
    values = parse(BROKER, {})
    assert listener_of(values) == ListenerAddress("127.0.0.1", 9092)
    assert advertised_listener_of(values, listener_of(values)) == ListenerAddress("127.0.0.1", 9092)
    assert data_directory_of(values) == "data"
    assert values["num.partitions"] == 1
    assert values["auto.create.topics.enable"] is True
    assert values["socket.request.max.bytes"] == 104_857_600
    assert values["log.flush.interval.messages"] == 1


def test_every_default_is_a_value_that_the_setting_takes() -> None:
    for setting in BROKER.settings.values():
        assert setting.default is None or setting.allowed is None or setting.allowed.accepts(setting.default), setting.name


def test_every_setting_is_documented() -> None:
    for setting in BROKER.settings.values():
        assert setting.documentation.endswith("."), setting.name


def test_clients_are_told_the_port_that_was_bound() -> None:
    values = parse(BROKER, {"listeners": "localhost:0"})
    assert advertised_listener_of(values, BOUND) == ListenerAddress("localhost", 4711)


def test_clients_are_told_what_is_advertised() -> None:
    values = parse(BROKER, {"listeners": "0.0.0.0:0", "advertised.listeners": "PLAINTEXT://queue.example:0"})
    assert advertised_listener_of(values, BOUND) == ListenerAddress("queue.example", 4711)
    values = parse(BROKER, {"listeners": "0.0.0.0:0", "advertised.listeners": "queue.example:80"})
    assert advertised_listener_of(values, BOUND) == ListenerAddress("queue.example", 80)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"listeners": "0.0.0.0:9092"}, "listeners=0.0.0.0:9092: no client can connect to every address"),
        ({"advertised.listeners": "[::]:9092"}, "advertised.listeners=[::]:9092: no client can connect to every address"),
        ({"listeners": "SSL://127.0.0.1:9092"}, "listeners=SSL://127.0.0.1:9092: SSL is not served yet"),
        ({"advertised.listeners": "nothing"}, "advertised.listeners=nothing: the port is missing"),
        ({"listeners": "a:1,b:2"}, "listeners=a:1,b:2: expected exactly one"),
        ({"listeners": ""}, "listeners=: expected exactly one"),
        ({"log.dirs": "a,b"}, "log.dirs=a,b: expected exactly one"),
        ({"socket.request.max.bytes": "1048576"}, "socket.request.max.bytes=1048576: expected at least 65536 more than"),
        ({"message.max.bytes": "104857600"}, "socket.request.max.bytes=104857600: expected at least 65536 more than"),
        ({"queued.max.request.bytes": "104857599"}, "queued.max.request.bytes=104857599: expected at least socket.request"),
        ({"num.partitions": "7", "max.partitions": "6"}, "num.partitions=7: expected at most max.partitions, which is 6"),
        ({"inter.broker.protocol.version": "3.9"}, "inter.broker.protocol.version=3.9: expected one of 4.3-IV0"),
        ({"num.partition": "1"}, "num.partition: there is no such setting; did you mean num.partitions?"),
        ({"log.cleaner.threads": "9", "log.cleaner.dedupe.buffer.size": "1048576"}, "expected at least 1048576 for each"),
    ],
)
def test_what_is_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        parse(BROKER, texts)
    assert message in str(caught.value)


def test_large_messages_need_large_requests() -> None:
    large = {"message.max.bytes": "200000000", "socket.request.max.bytes": "210000000", "queued.max.request.bytes": "210000000"}
    assert parse(BROKER, large)["message.max.bytes"] == 200_000_000
