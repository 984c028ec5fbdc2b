"""The quorum's messages on the wire: which of Kafka's requests each one is, and how its fields map.

Kafka's requests have room for many topics and partitions; the quorum has one, ``__cluster_metadata-0``. A request for anything
else, or for more than one partition, is malformed. A reply that carries a top-level error has no partition: the error counts, and
the sender is taken to know nothing of epochs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.broker.metadata_log import METADATA_TOPIC_ID
from tidelog.metadata.topics import METADATA_TOPIC
from tidelog.raft.messages import (
    UNKNOWN_HIGH_WATERMARK,
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
from tidelog.raft.quorum_state import NOBODY
from tidelog.raft.voters import ReplicaKey, VoterEndpoint
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

Fields = dict[str, Any]
# No epoch is known: such news changes nothing.
NO_NEWS = LeaderNews(-1)


class QuorumApi(NamedTuple):
    """One of the quorum's requests: its API, the versions that we speak, and how it becomes fields and back."""

    key: ApiKey
    versions: tuple[int, int]
    request_fields: Callable[[Any], Fields]
    decode_request: Callable[[DecodedMessage], QuorumRequest]
    reply_fields: Callable[[Any], Fields]
    decode_reply: Callable[[DecodedMessage], QuorumReply]


# -- parts -------------------------------------------------------------------------------------------------------------------


def _in_topic(partition: Fields) -> list[Fields]:
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **partition}]}]


def _the_partition(topics: Sequence[DecodedMessage], name: str = "topic_name", index: str = "partition_index") -> DecodedMessage:
    if len(topics) == 1 and getattr(topics[0], name) in (METADATA_TOPIC, METADATA_TOPIC_ID):
        partitions: Sequence[DecodedMessage] = topics[0].partitions
        if len(partitions) == 1 and getattr(partitions[0], index) == 0:
            return partitions[0]
    raise MalformedRequest(f"expected {METADATA_TOPIC}-0 and nothing else")


def _endpoint_fields(endpoints: Sequence[VoterEndpoint]) -> list[Fields]:
    return [{"name": endpoint.listener, "host": endpoint.host, "port": endpoint.port} for endpoint in endpoints]


def _endpoints(listeners: Sequence[DecodedMessage]) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(listener.name, listener.host, listener.port) for listener in listeners)


def _node_endpoints(news: LeaderNews) -> list[Fields]:
    if news.leader_id == NOBODY or news.leader_endpoint is None:
        return []
    return [{"node_id": news.leader_id, "host": news.leader_endpoint.host, "port": news.leader_endpoint.port}]


def _news(epoch: int, leader_id: int, nodes: Sequence[DecodedMessage]) -> LeaderNews:
    # The listener is the one that the answer came from: whoever asks controllers is told of controllers.
    endpoint = next((VoterEndpoint("", node.host, node.port) for node in nodes if node.node_id == leader_id), None)
    return LeaderNews(epoch, leader_id, endpoint)


def _code(number: int) -> ErrorCode:
    """A code of a later Kafka counts as an error that nobody expected."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


# -- Vote, BeginQuorumEpoch, EndQuorumEpoch ----------------------------------------------------------------------------------


def _vote_fields(vote: Vote) -> Fields:
    partition = {
        "replica_epoch": vote.epoch,
        "replica_id": vote.candidate.node_id,
        "replica_directory_id": vote.candidate.directory_id,
        "voter_directory_id": vote.voter.directory_id,
        "last_offset_epoch": vote.last_epoch,
        "last_offset": vote.last_offset,
        "pre_vote": vote.pre_vote,
    }
    return {"cluster_id": vote.cluster_id, "voter_id": vote.voter.node_id, "topics": _in_topic(partition)}


def _decode_vote(request: DecodedMessage) -> Vote:
    partition = _the_partition(request.topics)
    return Vote(
        epoch=partition.replica_epoch,
        candidate=ReplicaKey(partition.replica_id, partition.replica_directory_id),
        voter=ReplicaKey(request.voter_id, partition.voter_directory_id),
        last_epoch=partition.last_offset_epoch,
        last_offset=partition.last_offset,
        pre_vote=partition.pre_vote,
        cluster_id=request.cluster_id,
    )


def _begin_fields(begin: BeginQuorumEpoch) -> Fields:
    partition = {
        "voter_directory_id": begin.voter.directory_id,
        "leader_id": begin.leader_id,
        "leader_epoch": begin.epoch,
    }
    return {
        "cluster_id": begin.cluster_id,
        "voter_id": begin.voter.node_id,
        "topics": _in_topic(partition),
        "leader_endpoints": _endpoint_fields(begin.leader_endpoints),
    }


def _decode_begin(request: DecodedMessage) -> BeginQuorumEpoch:
    partition = _the_partition(request.topics)
    return BeginQuorumEpoch(
        epoch=partition.leader_epoch,
        leader_id=partition.leader_id,
        voter=ReplicaKey(request.voter_id, partition.voter_directory_id),
        leader_endpoints=_endpoints(request.leader_endpoints),
        cluster_id=request.cluster_id,
    )


def _end_fields(end: EndQuorumEpoch) -> Fields:
    partition = {
        "leader_id": end.leader_id,
        "leader_epoch": end.epoch,
        # Version 0 has ids alone.
        "preferred_successors": [key.node_id for key in end.preferred_candidates],
        "preferred_candidates": [
            {"candidate_id": key.node_id, "candidate_directory_id": key.directory_id} for key in end.preferred_candidates
        ],
    }
    return {"cluster_id": end.cluster_id, "topics": _in_topic(partition)}


def _decode_end(request: DecodedMessage) -> EndQuorumEpoch:
    partition = _the_partition(request.topics)
    candidates = [ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in partition.preferred_candidates]
    return EndQuorumEpoch(
        epoch=partition.leader_epoch,
        leader_id=partition.leader_id,
        preferred_candidates=tuple(candidates or map(ReplicaKey, partition.preferred_successors)),
        cluster_id=request.cluster_id,
    )


_AnyEpochReply = VoteReply | BeginQuorumEpochReply | EndQuorumEpochReply


def _epoch_reply_fields(reply: _AnyEpochReply) -> Fields:
    partition: Fields = {
        "error_code": reply.error,
        "leader_id": reply.news.leader_id,
        "leader_epoch": reply.news.epoch,
    }
    if isinstance(reply, VoteReply):
        partition["vote_granted"] = reply.vote_granted
    if reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return {"error_code": reply.error, "topics": ()}
    return {"error_code": ErrorCode.NONE, "topics": _in_topic(partition), "node_endpoints": _node_endpoints(reply.news)}


def _decode_epoch_reply(reply_type: type[Any]) -> Callable[[DecodedMessage], QuorumReply]:
    def decode(response: DecodedMessage) -> QuorumReply:
        reply: QuorumReply
        if response.error_code != ErrorCode.NONE:
            reply = reply_type(_code(response.error_code), NO_NEWS)
            return reply
        partition = _the_partition(response.topics)
        news = _news(partition.leader_epoch, partition.leader_id, response.node_endpoints)
        reply = reply_type(_code(partition.error_code), news)
        return reply._replace(vote_granted=partition.vote_granted) if isinstance(reply, VoteReply) else reply

    return decode


# -- Fetch and FetchSnapshot -------------------------------------------------------------------------------------------------


def _fetch_fields(fetch: QuorumFetch) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": fetch.epoch,
        "fetch_offset": fetch.fetch_offset,
        "last_fetched_epoch": fetch.last_fetched_epoch,
        "partition_max_bytes": fetch.size_max,
        "replica_directory_id": fetch.replica.directory_id,
        "high_watermark": fetch.high_watermark,
    }
    return {
        "cluster_id": fetch.cluster_id,
        "replica_state": {"replica_id": fetch.replica.node_id},
        "max_wait_ms": fetch.max_wait_ms,
        "max_bytes": fetch.size_max,
        "topics": [{"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}],
    }


def decode_fetch(request: DecodedMessage) -> QuorumFetch:
    partition = _the_partition(request.topics, "topic_id", "partition")
    high_watermark = partition.high_watermark
    return QuorumFetch(
        epoch=partition.current_leader_epoch,
        replica=ReplicaKey(request.replica_state.replica_id, partition.replica_directory_id),
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=partition.last_fetched_epoch,
        high_watermark=UNKNOWN_HIGH_WATERMARK if high_watermark is None else high_watermark,
        max_wait_ms=request.max_wait_ms,
        size_max=max(1, min(partition.partition_max_bytes or request.max_bytes, request.max_bytes)),
        cluster_id=request.cluster_id,
    )


def _fetch_reply_fields(reply: QuorumFetchReply) -> Fields:
    if reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return {"error_code": reply.error, "responses": ()}
    partition: Fields = {
        "partition_index": 0,
        "error_code": reply.error,
        "high_watermark": reply.high_watermark,
        "last_stable_offset": reply.high_watermark,
        "log_start_offset": reply.log_start_offset,
        "current_leader": {"leader_id": reply.news.leader_id, "leader_epoch": reply.news.epoch},
        "records": reply.records if reply.records is not None else b"",
    }
    if reply.diverging_epoch is not None:
        partition["diverging_epoch"] = {"epoch": reply.diverging_epoch.epoch, "end_offset": reply.diverging_epoch.end_offset}
    if reply.snapshot_id is not None:
        partition["snapshot_id"] = {"end_offset": reply.snapshot_id.end_offset, "epoch": reply.snapshot_id.epoch}
    topic = {"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}
    return {"error_code": ErrorCode.NONE, "responses": [topic], "node_endpoints": _node_endpoints(reply.news)}


def _decode_fetch_reply(response: DecodedMessage) -> QuorumFetchReply:
    if response.error_code != ErrorCode.NONE:
        return QuorumFetchReply(_code(response.error_code), NO_NEWS)
    partition = _the_partition(response.responses, "topic_id")
    leader, diverging, snapshot = partition.current_leader, partition.diverging_epoch, partition.snapshot_id
    return QuorumFetchReply(
        error=_code(partition.error_code),
        news=_news(leader.leader_epoch, leader.leader_id, response.node_endpoints),
        high_watermark=partition.high_watermark,
        log_start_offset=partition.log_start_offset,
        diverging_epoch=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        snapshot_id=SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.epoch >= 0 else None,
        records=partition.records or None,
    )


def _fetch_snapshot_fields(fetch: FetchSnapshot) -> Fields:
    partition = {
        "partition": 0,
        "current_leader_epoch": fetch.epoch,
        "snapshot_id": {"end_offset": fetch.snapshot_id.end_offset, "epoch": fetch.snapshot_id.epoch},
        "position": fetch.position,
        "replica_directory_id": fetch.replica.directory_id,
    }
    return {
        "cluster_id": fetch.cluster_id,
        "replica_id": fetch.replica.node_id,
        "max_bytes": fetch.size_max,
        "topics": [{"name": METADATA_TOPIC, "partitions": [partition]}],
    }


def _decode_fetch_snapshot(request: DecodedMessage) -> FetchSnapshot:
    partition = _the_partition(request.topics, "name", "partition")
    wanted = partition.snapshot_id
    return FetchSnapshot(
        epoch=partition.current_leader_epoch,
        replica=ReplicaKey(request.replica_id, partition.replica_directory_id),
        snapshot_id=SnapshotId(wanted.end_offset, wanted.epoch),
        position=partition.position,
        size_max=max(1, request.max_bytes),
        cluster_id=request.cluster_id,
    )


def _fetch_snapshot_reply_fields(reply: FetchSnapshotReply) -> Fields:
    if reply.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
        return {"error_code": reply.error, "topics": ()}
    snapshot = reply.snapshot_id if reply.snapshot_id is not None else SnapshotId(0, 0)
    partition = {
        "index": 0,
        "error_code": reply.error,
        "snapshot_id": {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch},
        "current_leader": {"leader_id": reply.news.leader_id, "leader_epoch": reply.news.epoch},
        "size": reply.size,
        "position": reply.position,
        "unaligned_records": reply.data,
    }
    topic = {"name": METADATA_TOPIC, "partitions": [partition]}
    return {"error_code": ErrorCode.NONE, "topics": [topic], "node_endpoints": _node_endpoints(reply.news)}


def _decode_fetch_snapshot_reply(response: DecodedMessage) -> FetchSnapshotReply:
    if response.error_code != ErrorCode.NONE:
        return FetchSnapshotReply(_code(response.error_code), NO_NEWS)
    partition = _the_partition(response.topics, "name", "index")
    leader, snapshot = partition.current_leader, partition.snapshot_id
    return FetchSnapshotReply(
        error=_code(partition.error_code),
        news=_news(leader.leader_epoch, leader.leader_id, response.node_endpoints),
        snapshot_id=SnapshotId(snapshot.end_offset, snapshot.epoch),
        size=partition.size,
        position=partition.position,
        data=partition.unaligned_records,
    )


# -- changes of the voters ---------------------------------------------------------------------------------------------------


def _add_fields(add: AddVoter) -> Fields:
    return {
        "cluster_id": add.cluster_id,
        "timeout_ms": add.timeout_ms,
        "voter_id": add.voter.node_id,
        "voter_directory_id": add.voter.directory_id,
        "listeners": _endpoint_fields(add.endpoints),
        "ack_when_committed": add.ack_when_committed,
    }


def _decode_add(request: DecodedMessage) -> AddVoter:
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    # Version 0 does not say.
    is_acknowledged_late = getattr(request, "ack_when_committed", True)
    return AddVoter(voter, _endpoints(request.listeners), request.timeout_ms, request.cluster_id, is_acknowledged_late)


def _remove_fields(remove: RemoveVoter) -> Fields:
    voter = remove.voter
    return {"cluster_id": remove.cluster_id, "voter_id": voter.node_id, "voter_directory_id": voter.directory_id}


def _decode_remove(request: DecodedMessage) -> RemoveVoter:
    return RemoveVoter(ReplicaKey(request.voter_id, request.voter_directory_id), request.cluster_id)


def _change_reply_fields(reply: ChangeVoterReply) -> Fields:
    return {"error_code": reply.error, "error_message": reply.message or None}


def _decode_change_reply(response: DecodedMessage) -> ChangeVoterReply:
    return ChangeVoterReply(_code(response.error_code), response.error_message or "")


def _update_fields(update: UpdateVoter) -> Fields:
    return {
        "cluster_id": update.cluster_id,
        "current_leader_epoch": update.epoch,
        "voter_id": update.voter.node_id,
        "voter_directory_id": update.voter.directory_id,
        "listeners": _endpoint_fields(update.endpoints),
        "k_raft_version_feature": {
            "min_supported_version": update.kraft_version_min,
            "max_supported_version": update.kraft_version_max,
        },
    }


def _decode_update(request: DecodedMessage) -> UpdateVoter:
    supported = request.k_raft_version_feature
    return UpdateVoter(
        epoch=request.current_leader_epoch,
        voter=ReplicaKey(request.voter_id, request.voter_directory_id),
        endpoints=_endpoints(request.listeners),
        kraft_version_min=supported.min_supported_version,
        kraft_version_max=supported.max_supported_version,
        cluster_id=request.cluster_id,
    )


def _update_reply_fields(reply: UpdateVoterReply) -> Fields:
    leader: Fields = {"leader_id": reply.news.leader_id, "leader_epoch": reply.news.epoch}
    if reply.news.leader_endpoint is not None:
        leader |= {"host": reply.news.leader_endpoint.host, "port": reply.news.leader_endpoint.port}
    return {"error_code": reply.error, "current_leader": leader}


def _decode_update_reply(response: DecodedMessage) -> UpdateVoterReply:
    leader = response.current_leader
    endpoint = VoterEndpoint("", leader.host, leader.port) if leader.host else None
    return UpdateVoterReply(_code(response.error_code), LeaderNews(leader.leader_epoch, leader.leader_id, endpoint))


# -- the table ---------------------------------------------------------------------------------------------------------------

QUORUM_APIS: Mapping[type[Any], QuorumApi] = {
    Vote: QuorumApi(ApiKey.VOTE, (0, 2), _vote_fields, _decode_vote, _epoch_reply_fields, _decode_epoch_reply(VoteReply)),
    BeginQuorumEpoch: QuorumApi(
        ApiKey.BEGIN_QUORUM_EPOCH,
        (0, 1),
        _begin_fields,
        _decode_begin,
        _epoch_reply_fields,
        _decode_epoch_reply(BeginQuorumEpochReply),
    ),
    EndQuorumEpoch: QuorumApi(
        ApiKey.END_QUORUM_EPOCH,
        (0, 1),
        _end_fields,
        _decode_end,
        _epoch_reply_fields,
        _decode_epoch_reply(EndQuorumEpochReply),
    ),
    # From 17 on a replica says which directory it has.
    QuorumFetch: QuorumApi(ApiKey.FETCH, (17, 18), _fetch_fields, decode_fetch, _fetch_reply_fields, _decode_fetch_reply),
    FetchSnapshot: QuorumApi(
        ApiKey.FETCH_SNAPSHOT,
        (0, 1),
        _fetch_snapshot_fields,
        _decode_fetch_snapshot,
        _fetch_snapshot_reply_fields,
        _decode_fetch_snapshot_reply,
    ),
    AddVoter: QuorumApi(ApiKey.ADD_RAFT_VOTER, (0, 1), _add_fields, _decode_add, _change_reply_fields, _decode_change_reply),
    RemoveVoter: QuorumApi(
        ApiKey.REMOVE_RAFT_VOTER, (0, 0), _remove_fields, _decode_remove, _change_reply_fields, _decode_change_reply
    ),
    UpdateVoter: QuorumApi(
        ApiKey.UPDATE_RAFT_VOTER, (0, 0), _update_fields, _decode_update, _update_reply_fields, _decode_update_reply
    ),
}
BY_KEY: Mapping[int, QuorumApi] = {int(api.key): api for api in QUORUM_APIS.values()}


def encode_quorum_request(request: QuorumRequest, version: int) -> bytes:
    api = QUORUM_APIS[type(request)]
    return encode_request(api.key, version, api.request_fields(request))


def decode_quorum_reply(request: QuorumRequest, version: int, body: memoryview) -> QuorumReply:
    """Raises MalformedRequest for a reply that does not answer the request."""
    api = QUORUM_APIS[type(request)]
    return api.decode_reply(decode_response(api.key, version, body))
