"""The quorum's messages survive the wire, and what is about anything but the metadata log is refused."""

from typing import Any

import pytest

from tests.broker.harness import Machine
from tidelog.broker.quorum_wire import NO_NEWS, QUORUM_APIS, decode_quorum_reply, encode_quorum_request
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.raft.messages import (
    AddVoter,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    ChangeVoterReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    EpochEnd,
    FetchSnapshot,
    FetchSnapshotReply,
    LeaderNews,
    QuorumFetch,
    QuorumFetchReply,
    QuorumReply,
    QuorumRequest,
    RemoveVoter,
    SnapshotId,
    UpdateVoter,
    UpdateVoterReply,
    Vote,
    VoteReply,
)
from tidelog.raft.voters import ReplicaKey, VoterEndpoint
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_request, encode_response
from tidelog.wire.protocol import ApiKey, RequestHeader

ONE, TWO = ReplicaKey(1, b"1" * 16), ReplicaKey(2, b"2" * 16)
ENDPOINT = VoterEndpoint("CONTROLLER", "host", 9093)
NEWS = LeaderNews(7, 1, VoterEndpoint("", "host", 9093))
NONE = ErrorCode.NONE

EXCHANGES: list[tuple[QuorumRequest, list[QuorumReply]]] = [
    (
        Vote(7, ONE, TWO, 6, 41, True, "cluster"),
        [VoteReply(NONE, NEWS, True), VoteReply(NONE, LeaderNews(7)), VoteReply(ErrorCode.INCONSISTENT_CLUSTER_ID, NO_NEWS)],
    ),
    (BeginQuorumEpoch(7, 1, TWO, (ENDPOINT,), "cluster"), [BeginQuorumEpochReply(ErrorCode.FENCED_LEADER_EPOCH, NEWS)]),
    (EndQuorumEpoch(7, 1, (TWO, ONE), "cluster"), [EndQuorumEpochReply(NONE, NEWS)]),
    (
        QuorumFetch(7, TWO, 42, 6, 40, 500, 1 << 20, "cluster"),
        [
            QuorumFetchReply(NONE, NEWS, 40, 3, records=b"batches"),
            QuorumFetchReply(NONE, NEWS, 40, 3, diverging_epoch=EpochEnd(5, 30)),
            QuorumFetchReply(NONE, NEWS, 40, 3, snapshot_id=SnapshotId(30, 5)),
            QuorumFetchReply(ErrorCode.NOT_LEADER_OR_FOLLOWER, NEWS),
            QuorumFetchReply(ErrorCode.INCONSISTENT_CLUSTER_ID, NO_NEWS),
        ],
    ),
    (
        FetchSnapshot(7, TWO, SnapshotId(30, 5), 100, 1000, "cluster"),
        [
            FetchSnapshotReply(NONE, NEWS, SnapshotId(30, 5), 2000, 100, b"piece"),
            FetchSnapshotReply(ErrorCode.SNAPSHOT_NOT_FOUND, NEWS, SnapshotId(0, 0)),
        ],
    ),
    (AddVoter(TWO, (ENDPOINT,), 1000, "cluster"), [ChangeVoterReply(NONE), ChangeVoterReply(ErrorCode.DUPLICATE_VOTER, "again")]),
    (RemoveVoter(TWO, "cluster"), [ChangeVoterReply(ErrorCode.VOTER_NOT_FOUND, "none")]),
    (UpdateVoter(7, TWO, (ENDPOINT,), 0, 1, "cluster"), [UpdateVoterReply(NONE, NEWS), UpdateVoterReply(NONE, LeaderNews(7))]),
]


def decoded(request: QuorumRequest, version: int) -> QuorumRequest:
    api = QUORUM_APIS[type(request)]
    body = encode_quorum_request(request, version)
    header = RequestHeader(api.key, version, 1, None, 0)
    return api.decode_request(decode_request(header, memoryview(body)))


@pytest.mark.parametrize(("request_", "replies"), EXCHANGES, ids=lambda value: type(value).__name__)
def test_the_newest_version_says_everything(request_: QuorumRequest, replies: list[QuorumReply]) -> None:
    api = QUORUM_APIS[type(request_)]
    version = api.versions[1]
    assert decoded(request_, version) == request_
    for reply in replies:
        body = encode_response(api.key, version, api.reply_fields(reply))
        assert decode_quorum_reply(request_, version, memoryview(body)) == reply


def without_directories(value: Any) -> Any:
    """What is left of a message where directories are not told."""
    if isinstance(value, ReplicaKey):
        return ReplicaKey(value.node_id)
    if isinstance(value, tuple):
        parts = [without_directories(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def test_older_versions_lack_directories_and_addresses() -> None:
    vote, begin, end = (exchange[0] for exchange in EXCHANGES[:3])
    assert decoded(vote, 1) == vote._replace(pre_vote=False)  # type: ignore[call-arg]  # it is a Vote
    older_vote = decoded(vote, 0)
    assert isinstance(older_vote, Vote)
    assert (older_vote.candidate, older_vote.voter.directory_id) == (ReplicaKey(1), bytes(16))
    older_begin = decoded(begin, 0)
    assert isinstance(older_begin, BeginQuorumEpoch)
    assert (older_begin.epoch, older_begin.leader_id, older_begin.leader_endpoints) == (7, 1, ())
    assert decoded(end, 0) == without_directories(end)


@pytest.fixture
def machine() -> Machine:
    settings = {"listeners": "127.0.0.1:9092,CONTROLLER://127.0.0.1:9093", "controller.listener.names": "CONTROLLER"}
    return Machine(settings)


def test_a_lone_broker_is_followed_and_leads_again_after_a_stranger_stood_for_election(machine: Machine) -> None:
    controllers = machine.client(1)
    fetch = QUORUM_APIS[QuorumFetch].request_fields(QuorumFetch(1, TWO, 0, 0))
    (topic,) = controllers.call(ApiKey.FETCH, 17, **fetch).responses
    partition = topic.partitions[0]
    log = machine.broker.directory.logs[METADATA_TOPIC, 0]
    assert (partition.error_code, partition.high_watermark) == (0, log.high_watermark)
    assert partition.current_leader.leader_id == 1
    assert len(partition.records) == log.segments.active.size
    # A later epoch is adopted, whoever tells of it. The broker waits for an election, and then leads the next one.
    vote = QUORUM_APIS[Vote].request_fields(Vote(9, TWO, ReplicaKey(1), 8, 1000))
    (topic,) = controllers.call(ApiKey.VOTE, 1, **vote).topics
    assert topic.partitions[0].leader_epoch == 9
    assert not machine.broker.quorum.is_leader
    machine.run_until(lambda: machine.broker.quorum.is_leader)
    assert machine.broker.quorum.epoch == 10
    machine.client().create_topic("later")


def test_requests_of_the_quorum_are_not_served_to_clients(machine: Machine) -> None:
    client = machine.client(0)
    client.send(ApiKey.VOTE, 1, encode_quorum_request(Vote(9, TWO, ReplicaKey(1), 8, 1000), 1))
    assert client.closed == f"unknown api key {int(ApiKey.VOTE)}"


def test_another_topic_has_no_quorum(machine: Machine) -> None:
    fields = QUORUM_APIS[Vote].request_fields(Vote(9, TWO, ReplicaKey(1), 8, 1000))
    fields["topics"][0]["topic_name"] = "orders"
    assert machine.client(1).call(ApiKey.VOTE, 1, **fields).error_code == ErrorCode.INVALID_REQUEST


def test_another_cluster_is_refused(machine: Machine) -> None:
    fields = QUORUM_APIS[Vote].request_fields(Vote(9, TWO, ReplicaKey(1), 8, 1000, cluster_id="another"))
    assert machine.client(1).call(ApiKey.VOTE, 1, **fields).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
