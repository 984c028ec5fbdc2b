"""The share coordinator's calls as other brokers send them: what they answer, whom they fence, and that clients are refused."""

from typing import Any

import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

SETTINGS = {
    "listeners": "OUTSIDE://127.0.0.1:1,INSIDE://127.0.0.1:2",
    "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
}
STATE_KEYS = range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.READ_SHARE_GROUP_STATE_SUMMARY + 1)
TOPIC_ID = bytes(range(16))


class Peer:
    """Another broker that keeps its state here."""

    def __init__(self, *, is_topic_created: bool = True) -> None:
        self.machine = Machine(SETTINGS)
        self.client: FakeClient = self.machine.client(1)
        key = "jobs:AAECAwQFBgcICQoLDA0ODw:0"
        if is_topic_created:
            self.client.call(ApiKey.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[key])
        self.machine.run_until(lambda: self.machine.broker.unready_reason() is None)

    def ask(self, key: ApiKey, version: int = 0, **fields: Any) -> DecodedMessage:
        topics = [{"topic_id": TOPIC_ID, "partitions": [{"partition": 0, **fields}]}]
        response = self.client.call(key, version, group_id="jobs", topics=topics)
        ((partition,),) = [topic.partitions for topic in response.results]
        found: DecodedMessage = partition
        return found

    def initialize(self, state_epoch: int = 1, start_offset: int = 5) -> int:
        fields = {"state_epoch": state_epoch, "start_offset": start_offset}
        return int(self.ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, **fields).error_code)

    def write(self, state_epoch: int = 1, leader_epoch: int = 0, version: int = 1) -> int:
        batches = [{"first_offset": 6, "last_offset": 8, "delivery_state": 2, "delivery_count": 1}]
        fields = {"state_epoch": state_epoch, "leader_epoch": leader_epoch, "start_offset": 5, "state_batches": batches}
        if version:
            fields["delivery_complete_count"] = 3
        return int(self.ask(ApiKey.WRITE_SHARE_GROUP_STATE, version, **fields).error_code)

    def read(self, leader_epoch: int) -> DecodedMessage:
        return self.ask(ApiKey.READ_SHARE_GROUP_STATE, leader_epoch=leader_epoch)


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_a_state_is_begun_written_read_summarized_and_deleted(peer: Peer) -> None:
    assert peer.initialize() == peer.write() == ErrorCode.NONE
    state = peer.read(leader_epoch=4)
    assert (state.error_code, state.state_epoch, state.start_offset) == (ErrorCode.NONE, 1, 5)
    assert [tuple(vars(batch).values()) for batch in state.state_batches] == [(6, 8, 2, 1)]
    summary = peer.ask(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 1, leader_epoch=-1)
    assert (summary.leader_epoch, summary.start_offset, summary.delivery_complete_count) == (4, 5, 3)
    assert peer.ask(ApiKey.DELETE_SHARE_GROUP_STATE).error_code == ErrorCode.NONE
    assert peer.read(leader_epoch=4).error_code == ErrorCode.INVALID_REQUEST
    assert peer.machine.facts("unexpected_error") == []


def test_who_is_late_is_fenced(peer: Peer) -> None:
    assert peer.write() == ErrorCode.INVALID_REQUEST, "nobody has begun it"
    peer.initialize(state_epoch=3)
    assert peer.write(state_epoch=2) == ErrorCode.FENCED_STATE_EPOCH
    assert peer.initialize(state_epoch=2) == ErrorCode.FENCED_STATE_EPOCH
    assert peer.read(leader_epoch=7).error_code == ErrorCode.NONE
    assert peer.write(state_epoch=3, leader_epoch=6) == ErrorCode.FENCED_LEADER_EPOCH
    assert peer.read(leader_epoch=6).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert peer.write(state_epoch=3, leader_epoch=7, version=0) == ErrorCode.NONE


def test_a_broker_that_does_not_coordinate_the_key_says_so() -> None:
    assert Peer(is_topic_created=False).initialize() == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("key", STATE_KEYS)
def test_clients_are_refused(peer: Peer, key: int) -> None:
    outside = peer.machine.client(0)
    outside.send(ApiKey(key), 0, b"\2g\1\0")
    assert outside.closed == f"unknown api key {key}"
