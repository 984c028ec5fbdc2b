"""A broker's settings: defaults for a laptop, and what makes no sense is refused before anything is started."""

import pytest

from tidelog.config.broker import BROKER, data_directory_of, listeners_of
from tidelog.config.definition import parse
from tidelog.config.listeners import ListenerAddress, ListenerRole, NamedListener
from tidelog.config.types import InvalidSetting

BOUND = ListenerAddress("127.0.0.1", 4711)


def advertised(texts: dict[str, str]) -> ListenerAddress:
    """What clients of the only listener are told once it is bound."""
    (listener,) = listeners_of(parse(BROKER, texts))
    return listener.bound_to(BOUND).advertised


def test_defaults() -> None:
    values = parse(BROKER, {})
    address = ListenerAddress("127.0.0.1", 9092)
    assert listeners_of(values) == [NamedListener("PLAINTEXT", ListenerRole.CLIENT, address, address)]
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
    assert advertised({"listeners": "localhost:0"}) == ListenerAddress("localhost", 4711)


def test_clients_are_told_what_is_advertised() -> None:
    queue = {"listeners": "0.0.0.0:0", "advertised.listeners": "PLAINTEXT://queue.example:0"}
    assert advertised(queue) == ListenerAddress("queue.example", 4711)
    assert advertised({**queue, "advertised.listeners": "queue.example:80"}) == ListenerAddress("queue.example", 80)


def test_listeners_have_names_and_roles() -> None:
    texts = {
        "listeners": "PLAINTEXT://:9092,internal://127.0.0.1:9093,CONTROLLER://127.0.0.1:9094",
        "advertised.listeners": "PLAINTEXT://queue.example:9092",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "controller",
    }
    found = listeners_of(parse(BROKER, texts))
    assert [(listener.name, listener.role, str(listener.advertised)) for listener in found] == [
        ("PLAINTEXT", ListenerRole.CLIENT, "queue.example:9092"),
        ("INTERNAL", ListenerRole.INTER_BROKER, "127.0.0.1:9093"),
        ("CONTROLLER", ListenerRole.CONTROLLER, "127.0.0.1:9094"),
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"listeners": "0.0.0.0:9092"}, "listeners=0.0.0.0:9092: no client can connect to every address"),
        ({"advertised.listeners": "[::]:9092"}, "advertised.listeners=[::]:9092: no client can connect to every address"),
        ({"listeners": "SSL://127.0.0.1:9092"}, "listeners=SSL://127.0.0.1:9092: SSL is not served yet"),
        ({"advertised.listeners": "nothing"}, "advertised.listeners=nothing: the port is missing"),
        ({"listeners": "a:1,b:2"}, "listeners=b:2: there is another listener with the name PLAINTEXT"),
        ({"listeners": ""}, "listeners=: expected at least one"),
        ({"listeners": "X://a:1"}, "X is not a protocol; expected PLAINTEXT, or a name that listener.security.protocol.map"),
        ({"listener.security.protocol.map": "X:TCP"}, "listener.security.protocol.map=X:TCP: expected NAME:PROTOCOL with one of"),
        (
            {"listeners": "X://a:1", "listener.security.protocol.map": "X:SASL_SSL"},
            "listeners=X://a:1: X has the protocol SASL_SSL, which is not served yet",
        ),
        ({"controller.listener.names": "C"}, "controller.listener.names=C: expected a name that listeners has: PLAINTEXT"),
        ({"inter.broker.listener.name": "B"}, "inter.broker.listener.name=B: expected a name that listeners has: PLAINTEXT"),
        ({"advertised.listeners": "SSL://a:1"}, "SSL is not served yet"),
        (
            {"listeners": "a:1,C://a:2", "controller.listener.names": "C", "inter.broker.listener.name": "C"},
            "inter.broker.listener.name=C: controller.listener.names has it; brokers need one of their own",
        ),
        (
            {"listeners": "a:1,C://a:1", "controller.listener.names": "C"},
            "listeners=C://a:1: another listener has this address; one address serves one listener",
        ),
        (
            {"inter.broker.listener.name": "PLAINTEXT"},
            "listeners=PLAINTEXT: expected one that is neither for brokers nor for controllers: clients need a listener",
        ),
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
