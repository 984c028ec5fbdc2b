"""``Queue`` with a real broker: what is handed out, how it is settled, how long locks last, and what every mistake says."""

import pickle
import time
from typing import Any

import pytest

from tests.client.consuming import new_group
from tests.client.queue.working import new_queue, receive, send, values
from tests.toolkit_broker import ToolkitBroker
from tidelog.client.consumer import Consumer
from tidelog.client.errors import AlreadySettled, BrokerUnavailable, Closed, GroupError, InvalidArgument, LockLost, UnknownQueue
from tidelog.client.producer import Producer
from tidelog.client.queue import Queue
from tidelog.client.queue.share_groups import LOCK_DURATION, OFFSET_RESET, ShareGroupAdmin
from tidelog.client.topic_partition import TopicPartition


@pytest.fixture
def name(kafka: ToolkitBroker) -> str:
    return new_queue(kafka.bootstrap)


def test_a_job_has_its_message_and_is_acknowledged_for_good(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        sent = queue.send({"id": 7}, key="customer-42", headers={"trace": "abc"}).result()
        (job,) = receive(queue, 1)
        assert (job.topic, job.partition, job.offset, job.deliveries) == (name, 0, sent.offset, 1)
        assert (job.json(), job.key, job.headers, job.timestamp) == ({"id": 7}, b"customer-42", {"trace": b"abc"}, sent.timestamp)
        job.ack()
        assert not job.is_held
    with Queue(kafka.bootstrap, name) as queue:
        send(queue, "next")
        assert values(receive(queue, 1)) == ["next"]


def test_any_number_of_workers_share_a_partition(kafka: ToolkitBroker, name: str) -> None:
    wanted = {str(number) for number in range(40)}
    with Queue(kafka.bootstrap, name) as one, Queue(kafka.bootstrap, name) as other:
        send(one, *wanted)
        first = receive(one, 10)
        rest = receive(other, 30)
        assert {*values(first), *values(rest)} == wanted
        assert {job.deliveries for job in (*first, *rest)} == {1}, "nobody had held what it was not asked for"
        one.ack(first)
        other.ack(rest)
        assert one.receive(wait=0.2) == other.receive() == []


def test_every_group_gets_all_jobs_and_two_queues_are_apart(kafka: ToolkitBroker, name: str) -> None:
    another = new_queue(kafka.bootstrap)
    with (
        Queue(kafka.bootstrap, name) as plain,
        Queue(kafka.bootstrap, name, group=new_group()) as audit,
        Queue(kafka.bootstrap, another) as elsewhere,
    ):
        send(plain, "a", "b")
        send(elsewhere, "c")
        for queue, expected in ((plain, ["a", "b"]), (audit, ["a", "b"]), (elsewhere, ["c"])):
            jobs = receive(queue, len(expected))
            assert values(jobs) == expected
            queue.ack(jobs)


def test_the_limit_is_strict_and_partitions_take_turns(kafka: ToolkitBroker) -> None:
    name = new_queue(kafka.bootstrap, partitions=3)
    with Queue(kafka.bootstrap, name) as queue:
        send(queue, *[str(number) for number in range(300)])
        found: list[str | None] = []
        while len(found) < 300:
            jobs = queue.receive(7, wait=10)
            assert 1 <= len(jobs) <= 7
            found += values(jobs)
            queue.ack(jobs)
        assert sorted(map(str, found)) == sorted(map(str, range(300)))


def test_a_released_job_comes_again_and_a_rejected_one_does_not(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        send(queue, "again", "never")
        again, never = receive(queue, 2)
        never.reject()
        again.nack()
        (job,) = receive(queue, 1)
        assert (job.text(), job.deliveries) == ("again", 2)
        job.ack()
        assert queue.receive(wait=0.2) == []


@pytest.mark.tidelog_only
def test_a_rejection_says_that_there_is_no_topic_for_its_dead_letter(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue, ShareGroupAdmin(kafka.bootstrap) as admin:
        admin.set_settings(name, {"errors.deadletterqueue.topic.name": "nowhere"})
        send(queue, "bad", "worse")
        bad = receive(queue, 2)
        with pytest.raises(LockLost, match="The topic of dead letters, nowhere, does not exist"):
            queue.reject(bad)
        send(queue, "good")
        receive(queue, 1)[0].ack()


def test_close_releases_what_was_not_acknowledged(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        send(queue, "done", "left")
        done, left = receive(queue, 2)
        done.ack()
    with pytest.raises(LockLost, match="the queue was closed"):
        left.ack()
    with Queue(kafka.bootstrap, name) as queue:
        (job,) = queue.receive(wait=20)
        assert (job.text(), job.deliveries) == ("left", 2)


def test_the_end_of_a_transaction_is_no_job_and_leaves_nothing_behind(kafka: ToolkitBroker, name: str) -> None:
    with Producer(kafka.bootstrap, transactional_id=name) as producer, producer.transaction():
        producer.send(name, "one")
    with Queue(kafka.bootstrap, name) as queue:
        (job,) = receive(queue, 1)
        job.ack()
        send(queue, "two")
        (job,) = receive(queue, 1)
        job.ack()
    with ShareGroupAdmin(kafka.bootstrap) as admin:
        # Apache Kafka writes later that the start has moved.
        assert admin.offsets(name)[TopicPartition(name, 0)].lag == 0


# -- locks -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.tidelog_only
def test_a_lock_that_ends_gives_the_job_to_another_worker(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, visibility_timeout=1) as slow, Queue(kafka.bootstrap, name) as other:
        send(slow, "job")
        (late,) = receive(slow, 1)
        (job,) = receive(other, 1)
        assert (job.text(), job.deliveries) == ("job", 2)
        with pytest.raises(LockLost, match=r"delivery 1\): its lock has expired") as refusal:
            late.ack()
        assert refusal.value.deliveries == 1
        assert pickle.loads(pickle.dumps(refusal.value)).deliveries == 1


@pytest.mark.tidelog_only
def test_an_earlier_delivery_cannot_settle_a_later_one_of_the_same_worker(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, visibility_timeout=1) as queue:
        send(queue, "job")
        (late,) = receive(queue, 1)
        (job,) = receive(queue, 1)
        with pytest.raises(LockLost, match="this worker has received it again"):
            late.ack()
        job.extend(0)
        assert job.is_held


@pytest.mark.tidelog_only
@pytest.mark.parametrize("is_renewing", [True, False], ids=["renew=True", "job.extend"])
def test_a_long_job_is_not_run_twice_while_its_lock_is_renewed(kafka: ToolkitBroker, name: str, is_renewing: bool) -> None:
    with (
        Queue(kafka.bootstrap, name, visibility_timeout=3, renew=is_renewing) as busy,
        Queue(kafka.bootstrap, name) as idle,
    ):
        send(busy, "long job")
        (job,) = receive(busy, 1)
        if not is_renewing:
            job.extend(30)
        assert idle.receive(wait=4.5) == []
        job.ack()
        assert idle.receive(wait=0.2) == []


@pytest.mark.tidelog_only
def test_renewing_ends_with_the_job_that_nobody_keeps(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, visibility_timeout=1, renew=True) as careless, Queue(kafka.bootstrap, name) as other:
        send(careless, "job")
        assert len(receive(careless, 1)) == 1  # And it is forgotten.
        assert receive(other, 1)[0].deliveries == 2


@pytest.mark.tidelog_only
def test_a_delayed_job_stays_away_for_longer_than_its_lock(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, visibility_timeout=2) as queue, Queue(kafka.bootstrap, name) as other:
        send(queue, "later")
        (job,) = receive(queue, 1)
        begun = time.monotonic()
        job.nack(delay=3)
        (again,) = receive(other, 1)
        assert time.monotonic() - begun >= 3
        assert again.deliveries == 2


def test_the_group_gets_the_visibility_timeout_and_begins_with_the_earliest(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name, visibility_timeout=20) as queue, ShareGroupAdmin(kafka.bootstrap) as admin:
        queue.receive()
        settings = admin.settings(name)
        assert settings[LOCK_DURATION].value == "20000"
        assert settings[OFFSET_RESET].value == "earliest"
        # What the group has been given before is kept.
        group = new_group()
        admin.set_settings(group, {OFFSET_RESET: "latest", LOCK_DURATION: "25000"})
        with Queue(kafka.bootstrap, name, group=group) as other:
            other.receive()
        settings = admin.settings(group)
        assert (settings[OFFSET_RESET].value, settings[LOCK_DURATION].value) == ("latest", "25000")


# -- mistakes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"visibility_timeout": 0.5}, r"visibility_timeout=0\.5: expected a number from 1 to 3600"),
        ({"visibility_timeout": 3_601}, "visibility_timeout=3601: expected a number from 1 to 3600"),
        ({"visibility_timeout": float("nan")}, "expected a number from 1 to 3600"),
    ],
)
def test_a_timeout_that_is_out_of_range_names_the_range(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Queue("127.0.0.1:1", "jobs", **arguments)


def test_mistakes_with_a_job_are_told(kafka: ToolkitBroker, name: str) -> None:
    with Queue(kafka.bootstrap, name) as queue:
        for arguments, words in (((0, 0), "max_messages=0: expected a number from 1"), ((1, -1), "wait=-1: expected a number")):
            with pytest.raises(InvalidArgument, match=words):
                queue.receive(*arguments)
        send(queue, "one", "two")
        one, two = receive(queue, 2)
        for wrong in (-1, 43_201):
            with pytest.raises(InvalidArgument, match=f"delay={wrong}: expected a number from 0 to 43200"):
                one.nack(delay=wrong)
            with pytest.raises(InvalidArgument, match=f"seconds={wrong}: expected a number from 0 to 43200"):
                one.extend(wrong)
        one.nack(delay=30)
        for call in (one.ack, one.nack, one.reject, lambda: one.extend(1)):
            with pytest.raises(AlreadySettled, match=r"it was released before, which is final for this delivery"):
                call()
        two.ack()
        with pytest.raises(AlreadySettled, match="cannot be acknowledged: it was acknowledged before"):
            two.ack()
    with pytest.raises(Closed):
        queue.receive()
    with pytest.raises(Closed):
        queue.send("three")
    queue.close()


def test_a_queue_that_is_not_there_is_told(kafka: ToolkitBroker) -> None:
    with pytest.raises(UnknownQueue, match="there is no queue nowhere: create it first: tidelog queues create nowhere"):
        Queue(kafka.bootstrap, "nowhere")
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        Queue("127.0.0.1:1", "jobs")


def test_a_group_of_another_kind_is_told(kafka: ToolkitBroker, name: str) -> None:
    group = new_group()
    with Consumer(kafka.bootstrap, group=group, topics=[name]) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout=0.1)
        with Queue(kafka.bootstrap, name, group=group) as queue, pytest.raises(GroupError, match="pass another group="):
            queue.receive()
