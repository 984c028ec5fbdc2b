"""Fetch requests for one partition, to whoever leads it: one is under way while the answer to the last is being worked on.

The request names the topic by its id where broker and topic have one (Fetch v13), so that a topic which was deleted and created
again under its name is never mistaken for the one that was asked for; before that, the id is compared whenever the leader is
looked up.
"""

from tidelog.client.fetch.cluster import Cluster
from tidelog.client.fetch.errors import TopicRecreated
from tidelog.client.fetch.settings import OwnSettings
from tidelog.client.transactions.connection import Connection
from tidelog.client.transactions.errors import InvalidAnswer
from tidelog.wire.errors import MalformedRequest
from tidelog.wire.fetch import CONSUMER_REPLICA_ID, FINAL_EPOCH, TOPIC_IDS_SINCE, FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.fetch_client import FetchedPartition, FetchResponse, decode_fetch_response, encode_fetch_request
from tidelog.wire.primitives import ZERO_UUID
from tidelog.wire.protocol import ApiKey


class LeaderLink:
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        expected_topic_id: bytes | None,
        settings: OwnSettings,
        isolation_level: int,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._topic_id = expected_topic_id or ZERO_UUID
        self._settings = settings
        self._isolation_level = isolation_level
        self._connection: Connection | None = None
        self._node_id = -1
        self._version = 0
        self.is_under_way = False

    def send(self, offset: int) -> None:
        """Ask for what begins at ``offset``."""
        connection = self._connection or self._connect()
        wanted = FetchPartition(self._partition, offset, self._settings.fetch_bytes_max)
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            wait_ms_max=self._settings.wait_ms_max,
            bytes_min=1,
            bytes_max=self._settings.fetch_bytes_max,
            isolation_level=self._isolation_level,
            session_id=0,
            session_epoch=FINAL_EPOCH,
            topics=[FetchTopic(self._topic, self._topic_id, [wanted])],
            forgotten=[],
            rack_id="",
        )
        connection.send(ApiKey.FETCH, self._version, encode_fetch_request(self._version, request), self._seconds_max)
        self.is_under_way = True

    def receive(self) -> tuple[FetchedPartition | None, int]:
        """The partition of the answer, None where the broker has left it out to slow this client down; and for how many
        milliseconds it wants to be left alone."""
        connection = self._connection
        if connection is None:
            raise InvalidAnswer("nothing was asked for")
        frame, position = connection.receive(ApiKey.FETCH, self._version, self._seconds_max)
        self.is_under_way = False
        try:
            response = decode_fetch_response(self._version, frame, position)
        except MalformedRequest as error:
            raise InvalidAnswer(f"{connection.address} answered FETCH with what makes no sense: {error}") from error
        return self._own_partition(response), response.throttle_time_ms

    def close(self) -> None:
        """The connection is kept for others if nothing is under way on it."""
        if self._connection is not None:
            if self.is_under_way:
                self._cluster.discard(self._connection)
            else:
                self._cluster.give_back(self._node_id, self._connection)
        self._connection, self.is_under_way = None, False

    def drop(self) -> None:
        """After a failure; the next request looks for the leader anew."""
        if self._connection is not None:
            self._cluster.discard(self._connection)
        self._cluster.forget_idle()
        self._connection, self.is_under_way = None, False

    def _connect(self) -> Connection:
        leader = self._cluster.leader(self._topic, self._partition)
        if leader.topic_id != ZERO_UUID:
            if self._topic_id not in (leader.topic_id, ZERO_UUID):
                raise TopicRecreated(
                    f"{self._topic} was deleted and created again: it has the id {leader.topic_id.hex()} now, and "
                    f"{self._topic_id.hex()} was asked for; offsets of the old topic mean nothing in the new one"
                )
            self._topic_id = leader.topic_id
        connection = self._cluster.take_connection(leader.node_id)
        version = connection.version_of(ApiKey.FETCH)
        self._version = version if leader.topic_id != ZERO_UUID else min(version, TOPIC_IDS_SINCE - 1)
        self._node_id, self._connection = leader.node_id, connection
        return connection

    def _own_partition(self, response: FetchResponse) -> FetchedPartition | None:
        for topic in response.topics:
            if (topic.topic_id == self._topic_id) if self._version >= TOPIC_IDS_SINCE else (topic.name == self._topic):
                for partition in topic.partitions:
                    if partition.partition == self._partition:
                        return partition
        return None

    @property
    def _seconds_max(self) -> float:
        return self._settings.timeout_ms / 1000
