"""Clients that ask for more than a broker has, all at once, in a process of their own: ``python -m tests.faults.attackers``.

Its arguments are the broker's port, for how many seconds, and a file for what was acknowledged to the floods: one line for each
value, topic, partition and offset. When it ends nothing of it is left: every connection is closed or reset.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.faults.peers import Peer, api_versions_request, batch_of_value, produce_request, request
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import CONSUMER_REPLICA_ID, FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from tidelog.wire.messages import encode_request
from tidelog.wire.produce import decode_produce_response
from tidelog.wire.protocol import ApiKey, parse_response_header

FLOODS = 4
FLOOD_VALUE_BYTES = 100_000
FLOOD_IN_FLIGHT = 12
UNANSWERED_TOPIC = "unanswered"
HISTORY_TOPIC = "history"
READERS = 10
METADATA_PEERS = 4
METADATA_TOPICS = 10_000
METADATA_IN_FLIGHT = 5
CONNECTIONS_AT_ONCE = 400
# Between two looks at the clock, and how long peers that do nothing do it.
PAUSE_SECONDS = 0.02

Acknowledged = list[tuple[int, str, int]]


class Attack:
    def __init__(self, port: int, seconds: float) -> None:
        self.port = port
        self.end = time.monotonic() + seconds
        self.acknowledged: Acknowledged = []
        """Value, topic, offset."""
        self.counts: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + number

    # -- what it does ----------------------------------------------------------------------------------------------------------

    def flood(self, number: int) -> None:
        """Produce with acks=all, as many as may be in flight: more than the disk takes."""
        topic = f"flood-{number}"
        value = number << 32
        padding = Random(number).randbytes(FLOOD_VALUE_BYTES)
        with Peer(self.port) as peer:
            while not self.is_over:
                values = range(value, value + FLOOD_IN_FLIGHT)
                value += FLOOD_IN_FLIGHT
                for each in values:
                    peer.send(produce_request(topic, batch_of_value(each.to_bytes(8, "big") + padding)))
                for each in values:
                    offset = produced_offset(peer)
                    if offset is not None:
                        self.acknowledged.append((each, topic, offset))
                        self.count("acknowledged")

    def flood_unanswered(self) -> None:
        """Produce with acks=0: nothing that the client would have to wait for."""
        data = produce_request(UNANSWERED_TOPIC, batch_of_value(bytes(FLOOD_VALUE_BYTES)), acks=0)
        with Peer(self.port) as peer:
            while not self.is_over and peer.send(data):
                self.count("unanswered")

    def read_slowly(self, number: int) -> None:
        """Fetch everything, again and again; half of them never read, the others some bytes at a time."""
        wanted = [FetchTopic(HISTORY_TOPIC, None, [FetchPartition(0, 0, 2**31 - 1)])]
        fetch = FetchRequest(CONSUMER_REPLICA_ID, 500, 1, 2**31 - 1, 0, 0, -1, wanted, [], "")
        frame = request(ApiKey.FETCH, 12, encode_fetch_request(12, fetch))
        with Peer(self.port, receive_buffer_bytes=4096) as peer:
            peer.send(frame * 50)
            while not self.is_over:
                if number % 2:
                    self.count("read bytes", peer.read_some(4096))
                time.sleep(PAUSE_SECONDS)

    def ask_for_metadata(self) -> None:
        fields = {
            "topics": [{"name": f"{HISTORY_TOPIC}-{number}"} for number in range(METADATA_TOPICS)],
            "allow_auto_topic_creation": False,
        }
        frame = request(ApiKey.METADATA, 12, encode_request(ApiKey.METADATA, 12, fields))
        with Peer(self.port) as peer:
            peer.send(frame * METADATA_IN_FLIGHT)
            while not self.is_over:
                assert peer.read_response() is not None
                self.count("metadata")
                peer.send(frame)

    def connect(self) -> None:
        """More than there may be; they say nothing, or half of something, and then they are gone."""
        while not self.is_over:
            peers: list[Peer] = []
            for number in range(CONNECTIONS_AT_ONCE):
                with suppress(OSError):
                    peer = Peer(self.port)
                    peers.append(peer)
                    if number % 2:
                        peer.send(api_versions_request(number)[: 1 + number % 20])
            self.count("connections", len(peers))
            time.sleep(0.5)
            for number, peer in enumerate(peers):
                peer.reset() if number % 3 else peer.close()

    def run(self) -> None:
        works: list[Callable[[], None]] = [self.flood_unanswered, self.connect]
        works += [lambda number=number: self.flood(number) for number in range(FLOODS)]  # type: ignore[misc]  # a default binds it
        works += [lambda number=number: self.read_slowly(number) for number in range(READERS)]  # type: ignore[misc]  # as above
        works += [self.ask_for_metadata] * METADATA_PEERS
        threads = [threading.Thread(target=self._work, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, work: Callable[[], None]) -> None:
        """A peer that was refused, reset or left waiting tries again."""
        while not self.is_over:
            try:
                work()
            except (OSError, AssertionError) as error:
                self.count(f"{type(error).__name__} of {getattr(work, '__name__', '?')}")
                time.sleep(PAUSE_SECONDS)


def produced_offset(peer: Peer) -> int | None:
    """None when the answer was an error."""
    frame = peer.read_response()
    if frame is None:
        raise ConnectionResetError
    view = memoryview(frame)
    _, position = parse_response_header(ApiKey.PRODUCE, 9, view)
    result = decode_produce_response(9, view, position).topics[0].partitions[0]
    return result.base_offset if result.error is ErrorCode.NONE else None


def main() -> None:
    port, seconds, path = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    attack = Attack(port, seconds)
    attack.run()
    path.write_text("".join(json.dumps(each) + "\n" for each in attack.acknowledged))
    print(json.dumps(attack.counts))


if __name__ == "__main__":
    main()
