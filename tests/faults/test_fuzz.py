"""Requests of chance against a whole broker on simulated ports: every API and version, as written and mutated.

Each ends with an answer or with the end of its connection, never with an error that the broker did not expect, and the broker
still serves. Only a fetch may wait as long as it asks for. A failure prints the seed that makes the same requests again.
"""

import os
import random
import time
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulation.scheduler import NeverReachedError
from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tests.wire.kio_messages import chance_message, kio_bytes, message_classes
from tidelog.broker.handlers import TABLE
from tidelog.wire.messages import Direction
from tidelog.wire.protocol import ApiKey, request_header

EXAMPLES = 40
REQUESTS_MAX = 4
# Of simulated time: longer than any answer takes that is not a long poll. Deadlines of decisions are at 30 s.
PATIENCE_MS = 40_000
# Of real time, on a busy machine: far above what a request may take.
SECONDS_MAX = 20.0
WAITS_AT_WILL = {ApiKey.FETCH}
WORDS = ("__cluster_metadata", "1", "0", "retention.ms", "cleanup.policy", "compact", "metadata.version", "new-topic")


class Chance(random.Random):
    """Of the values that a message is made of, some exist: the broker's topic and its id, and records that are whole."""

    topic_id = bytes(16)

    def choice(self, seq):  # type: ignore[no-untyped-def]  # as the base class has it
        found = super().choice(seq)
        if isinstance(found, str) and self.random() < 0.7:
            return "orders" if self.random() < 0.6 else super().choice(WORDS)
        if type(found) is int and self.random() < 0.5:
            # Partitions, offsets, epochs and kinds that there are, and "the latest".
            return super().choice((0, 0, 1, 2, -1, -2))
        if isinstance(found, bytes) and self.random() < 0.7:
            return mutated(batch(self.randrange(1, 4)), self) if self.random() < 0.5 else batch(self.randrange(1, 4))
        return found

    def randbytes(self, n: int) -> bytes:
        return self.topic_id if n == 16 and self.random() < 0.5 else super().randbytes(n)


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        if not changed:
            break
        position = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[position] ^= 1 << chance.randrange(8)
            case 1:
                changed[position] = random.Random.choice(chance, (0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[position:]
            case 3:
                del changed[position : position + chance.randrange(1, 9)]
            case _:
                changed[position:position] = random.Random.randbytes(chance, chance.randrange(1, 9))
    return bytes(changed)


@dataclass(slots=True)
class Target:
    machine: Machine
    client: FakeClient
    topic_id: bytes

    @classmethod
    def make(cls) -> "Target":
        # Partitions cost simulated files; a number beyond the limit is refused, as a hundred thousand are in earnest.
        machine = Machine({"max.partitions": "50"})
        client = machine.client()
        topic_id = client.create_topic("orders", 2)
        client.append(count=3)
        return cls(machine, client, topic_id)

    def send(self, frame: bytes, may_wait: bool) -> None:
        """Returns when it was answered or its connection ended."""
        client = self.machine.client()
        began = time.monotonic()
        client.send_bytes(frame)
        end_ms = self.machine.clock.monotonic_ms() + PATIENCE_MS
        self.machine.run_until(
            lambda: not client.session.in_flight or client.closed is not None or self.machine.clock.monotonic_ms() > end_ms
        )
        is_over = not client.session.in_flight or client.closed is not None
        client.session.closed()
        assert is_over or may_wait, f"no answer within {PATIENCE_MS} ms"
        assert time.monotonic() - began < SECONDS_MAX, "it held the broker"
        assert self.machine.facts("unexpected_error") == []

    def check_that_it_serves(self) -> None:
        client = self.machine.client()
        client.call(ApiKey.DESCRIBE_CLUSTER, 0)
        client.call(ApiKey.CREATE_TOPICS, 7, topics=[{"name": "probe", "num_partitions": 1, "replication_factor": 1}])
        result = client.append("probe")
        assert result.error == 0, result
        assert client.read("probe").records
        assert self.machine.facts("unexpected_error") == []


def fuzz(key: int, seed: int) -> None:
    chance = Chance(seed)
    target = Target.make()
    chance.topic_id = target.topic_id
    classes = dict(message_classes(key, Direction.REQUEST))
    low, high = TABLE[key].versions
    for number in range(chance.randrange(1, REQUESTS_MAX + 1)):
        version = chance.randrange(low, high + 1)
        body = kio_bytes(chance_message(classes[version], chance))
        frame = request_header(key, version, number, "fuzz") + body
        if random.Random.random(chance) < 0.5:
            frame = mutated(frame, chance)
        try:
            target.send(frame, key in WAITS_AT_WILL)
        except NeverReachedError:
            assert key in WAITS_AT_WILL, "no answer, and nothing more happens"
    target.check_that_it_serves()


KEYS = pytest.mark.parametrize("key", sorted(TABLE), ids=lambda key: ApiKey(key).name)


@KEYS
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_requests_of_chance(key: int, seed: int) -> None:
    fuzz(key, seed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_record_batches_of_chance(seed: int) -> None:
    """Appended or refused; and what was appended can be read, also by a broker that starts again."""
    chance = random.Random(seed)
    target = Target.make()
    for _ in range(5):
        records = mutated(batch(chance.randrange(1, 5)) * chance.choice((1, 1, 2)), chance)
        target.client.append(records=records)
        assert target.client.read().error == 0
    assert target.machine.facts("unexpected_error") == []
    assert target.machine.crash() is None
    assert target.machine.facts("log_offline") == []
    Target(target.machine, target.machine.client(), target.topic_id).check_that_it_serves()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(frames=st.lists(st.binary(max_size=60), min_size=1, max_size=20))
def test_frames_of_chance(frames: list[bytes]) -> None:
    target = Target.make()
    for frame in frames:
        target.send(frame, may_wait=False)
    target.check_that_it_serves()


@pytest.mark.soak
def test_requests_of_chance_for_long() -> None:
    end = time.monotonic() + 60 * float(os.environ.get("TIDELOG_SOAK_MINUTES", "1"))
    source = random.SystemRandom()
    while time.monotonic() < end:
        for key in sorted(TABLE):
            seed = source.getrandbits(32)
            print(f"fuzz({key}, {seed})", flush=True)
            fuzz(key, seed)
