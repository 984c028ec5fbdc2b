"""A node's place in its cluster: what contradicts itself is refused, with the setting and what to do."""

import pytest

from tidelog.config.broker import BROKER, listeners_of
from tidelog.config.cluster import (
    ProcessRole,
    QuorumVoterAddress,
    bootstrap_servers_of,
    names_a_quorum,
    quorum_voters_of,
    roles_of,
)
from tidelog.config.definition import parse
from tidelog.config.listeners import ListenerAddress, ListenerRole
from tidelog.config.types import InvalidSetting

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:9093,CONTROLLER://127.0.0.1:9094",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
    "inter.broker.listener.name": "INTERNAL",
    "controller.listener.names": "CONTROLLER",
}
VOTERS = {"controller.quorum.voters": "2@b:9094,1@[::1]:9094,10@c:9094"}
CLUSTER = {**LISTENERS, **VOTERS}


def test_a_node_without_a_quorum_is_one_by_itself() -> None:
    values = parse(BROKER, {})
    assert roles_of(values) == {ProcessRole.BROKER, ProcessRole.CONTROLLER}
    assert not names_a_quorum(values)
    assert quorum_voters_of(values) == ()
    assert (values["broker.heartbeat.interval.ms"], values["broker.session.timeout.ms"]) == (500, 3_000)


def test_voters_are_sorted_by_their_ids() -> None:
    values = parse(BROKER, CLUSTER)
    assert names_a_quorum(values)
    assert quorum_voters_of(values) == (
        QuorumVoterAddress(1, ListenerAddress("::1", 9094)),
        QuorumVoterAddress(2, ListenerAddress("b", 9094)),
        QuorumVoterAddress(10, ListenerAddress("c", 9094)),
    )


def test_bootstrap_servers() -> None:
    values = parse(BROKER, {**LISTENERS, "controller.quorum.bootstrap.servers": "a:1,[::1]:2"})
    assert bootstrap_servers_of(values) == (ListenerAddress("a", 1), ListenerAddress("::1", 2))


def test_a_broker_that_is_no_controller_names_the_listener_of_controllers_without_having_it() -> None:
    texts = {**CLUSTER, "process.roles": "broker", "node.id": "4"}
    texts["listeners"] = "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:9093"
    assert [listener.role for listener in listeners_of(parse(BROKER, texts))] == [ListenerRole.CLIENT, ListenerRole.INTER_BROKER]


def test_a_controller_that_is_no_broker_serves_controllers_only() -> None:
    texts = {**CLUSTER, "process.roles": "controller", "listeners": "CONTROLLER://127.0.0.1:9094"}
    assert [listener.role for listener in listeners_of(parse(BROKER, texts))] == [ListenerRole.CONTROLLER]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"process.roles": "queen"}, "process.roles=queen: expected a list of any of broker, controller"),
        ({"process.roles": ""}, "process.roles=: expected broker, controller, or both"),
        (
            {"process.roles": "broker"},
            "process.roles=broker: a broker without a controller needs a quorum: set controller.quorum",
        ),
        ({**CLUSTER, "node.id": "3"}, "this node, 3, is a controller and is missing from the list"),
        ({**CLUSTER, "process.roles": "broker"}, "this node, 1, is in the list, so process.roles must have controller"),
        ({**CLUSTER, "controller.quorum.voters": "a:1"}, "controller.quorum.voters=a:1: expected id@host:port"),
        ({**CLUSTER, "controller.quorum.voters": "-1@a:1"}, "expected id@host:port"),
        ({**CLUSTER, "controller.quorum.voters": "1@a"}, "controller.quorum.voters=1@a: the port is missing"),
        ({**CLUSTER, "controller.quorum.voters": "1@a:0"}, "expected an address that other nodes can connect to"),
        ({**CLUSTER, "controller.quorum.voters": "1@:9"}, "expected an address that other nodes can connect to"),
        ({**CLUSTER, "controller.quorum.voters": "1@a:1,1@b:1"}, "controller.quorum.voters=1@b:1: node 1 is listed twice"),
        ({**CLUSTER, "controller.quorum.bootstrap.servers": "PLAINTEXT://a:1"}, "expected host:port without a protocol"),
        (VOTERS, "controller.listener.names=: expected the name of a listener: the controllers of a quorum need one"),
        (
            {"listeners": "a:1,CONTROLLER://a:2", "controller.listener.names": "CONTROLLER", **VOTERS},
            "inter.broker.listener.name=: expected the name of a listener: in a cluster the other brokers need one that clients",
        ),
        ({**CLUSTER, "process.roles": "controller"}, "this node is a controller only, and serves nobody else"),
        (
            {**CLUSTER, "process.roles": "broker", "node.id": "4"},
            "listeners=CONTROLLER: controller.listener.names has it, but this node is not a controller",
        ),
        ({"broker.session.timeout.ms": "999"}, "expected at least twice broker.heartbeat.interval.ms, which is 500"),
    ],
)
def test_what_contradicts_itself_is_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse(BROKER, texts)
    assert message in str(refused.value)
