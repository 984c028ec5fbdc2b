"""Topics are created and deleted through any broker of a cluster, and what was acknowledged is written down.

``DecisionLoad`` runs on a thread until it is told to stop. It sends each request to a broker that it picks, over a connection of
its own, because a client library would go to the controller by itself. What became of each topic is known (acknowledged), open
(the request failed or was not answered: it may have been executed), or decided by asking again. ``check`` compares that with what
each broker says in the end.
"""

import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidelog.testing import Cluster
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.messages import decode_response, encode_request
from tidelog.wire.protocol import ApiKey, parse_response_header, request_header

REQUEST_SECONDS_MAX = 5.0
CREATE_VERSION, DELETE_VERSION, METADATA_VERSION = 7, 6, 12
_SIZE = struct.Struct(">i")


class NoAnswer(Exception):
    """The request may or may not have been executed."""


def ask(port: int, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    """One request to one broker, over a connection of its own."""
    request = request_header(api, version, 1, "decisions") + encode_request(api, version, fields)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=REQUEST_SECONDS_MAX) as connection:
            connection.sendall(_SIZE.pack(len(request)) + request)
            with connection.makefile("rb") as answers:
                frame = answers.read(_SIZE.unpack(answers.read(_SIZE.size))[0])
        _, position = parse_response_header(api, version, memoryview(frame))
        return decode_response(api, version, memoryview(frame), position)
    except (OSError, struct.error, MalformedRequest) as error:
        raise NoAnswer(str(error)) from error


@dataclass
class Decisions:
    """What clients know."""

    created: dict[str, Any] = field(default_factory=dict)
    """Topics whose creation was acknowledged, with the ids that they got; nobody has tried to delete them."""
    deleted: set[str] = field(default_factory=set)
    """Topics whose deletion was acknowledged."""
    is_open: set[str] = field(default_factory=set)
    """Topics of which nobody knows whether they are there."""
    acknowledged_count: int = 0


class DecisionLoad:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._number = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
        self.decisions = Decisions()
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def wait_for_more(self, count: int, seconds_max: float) -> float:
        """Wait until so many more decisions are acknowledged; returns how long that took."""
        begin = time.monotonic()
        wanted = self.decisions.acknowledged_count + count
        while self.decisions.acknowledged_count < wanted:
            assert self.error is None, self.error
            assert time.monotonic() < begin + seconds_max, f"no {count} decisions in {seconds_max} s"
            time.sleep(0.005)
        return time.monotonic() - begin

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                running = self._cluster.running
                port = self._cluster.nodes[self._random.choice(running)].port
                if self.decisions.created and self._random.random() < 0.4:
                    self._delete(port, self._random.choice(sorted(self.decisions.created)))
                else:
                    self._create(port)
        except BaseException as error:
            self.error = error

    def _create(self, port: int) -> None:
        self._number += 1
        name = f"topic-{self._number}"
        topic = {
            "name": name,
            "num_partitions": self._random.randint(1, 3),
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        try:
            answer = ask(
                port, ApiKey.CREATE_TOPICS, CREATE_VERSION, {"topics": [topic], "timeout_ms": 4_000, "validate_only": False}
            )
        except NoAnswer:
            self.decisions.is_open.add(name)
            return
        (result,) = answer.topics
        if result.error_code == ErrorCode.NONE:
            self.decisions.created[name] = result.topic_id
            self.decisions.acknowledged_count += 1
        else:
            # A name that nobody had used before exists only because this very request was executed twice.
            assert result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS, f"{name} was created twice"
            self.decisions.is_open.add(name)

    def _delete(self, port: int, name: str) -> None:
        del self.decisions.created[name]
        try:
            topics = [{"name": name, "topic_id": bytes(16)}]
            answer = ask(port, ApiKey.DELETE_TOPICS, DELETE_VERSION, {"topics": topics, "timeout_ms": 4_000})
        except NoAnswer:
            self.decisions.is_open.add(name)
            return
        (result,) = answer.responses
        if result.error_code == ErrorCode.NONE:
            self.decisions.deleted.add(name)
            self.decisions.acknowledged_count += 1
        else:
            # The broker may be behind, but the decision is the controller's: it knows every acknowledged topic.
            assert result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} was acknowledged and is lost"
            self.decisions.is_open.add(name)


def images(cluster: Cluster) -> list[dict[str, Any]]:
    """The topics as each broker knows them: ids, and the replicas, leader and epoch of each partition."""
    found = []
    for node in cluster.nodes.values():
        answer = ask(node.port, ApiKey.METADATA, METADATA_VERSION, {"topics": None, "allow_auto_topic_creation": False})
        found.append(
            {
                topic.name: (
                    topic.topic_id,
                    sorted(
                        (part.partition_index, part.leader_id, part.leader_epoch, part.replica_nodes) for part in topic.partitions
                    ),
                )
                for topic in answer.topics
            }
        )
    return found


def check(cluster: Cluster, decisions: Decisions, seconds_max: float) -> None:
    """All brokers run. Their images become equal, and hold every decision that was acknowledged."""
    wait_until(lambda: _are_equal(cluster, decisions), seconds_max, lambda: f"the images differ: {images(cluster)}")
    image = images(cluster)[0]
    lost = [name for name, topic_id in decisions.created.items() if name not in image or image[name][0] != topic_id]
    assert lost == []
    assert [name for name in decisions.deleted if name in image] == []
    unknown = set(image) - set(decisions.created) - decisions.is_open
    assert unknown == set()


def _are_equal(cluster: Cluster, decisions: Decisions) -> bool:
    first, *others = images(cluster)
    return all(other == first for other in others) and all(name in first for name in decisions.created)


def wait_until(condition: Callable[[], bool], seconds_max: float, explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            if condition():
                return
        except NoAnswer:
            pass
        assert time.monotonic() < deadline, explain()
        time.sleep(0.02)


def kill_rounds(cluster: Cluster, seed: int, rounds: int, on_round: Callable[[int, float], None] | None = None) -> Sequence[int]:
    """Kill random nodes under the load, one after the other, and check. Returns whom it killed."""
    choice = random.Random(seed)
    load = DecisionLoad(cluster, seed)
    load.start()
    killed = []
    try:
        for number in range(rounds):
            load.wait_for_more(2, 60)
            node_id = choice.choice(cluster.node_ids)
            killed.append(node_id)
            cluster.kill(node_id)
            # The majority decides without it.
            seconds = load.wait_for_more(2, 60)
            if on_round is not None:
                on_round(number, seconds)
            cluster.restart(node_id)
    finally:
        load.stop()
    check(cluster, load.decisions, 60)
    return killed
