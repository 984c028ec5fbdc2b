"""``tidelog queues`` on a real broker."""

import secrets

import pytest

from tests.cli.command import Command
from tests.client.queue.working import receive
from tidelog.client.queue import Queue


@pytest.fixture
def name() -> str:
    return f"jobs-{secrets.token_hex(4)}"


def test_the_life_of_a_queue(fresh_command: Command, name: str) -> None:
    command = fresh_command
    assert command("queues", "list").lines == ["There are no queues yet. To create one: tidelog queues create NAME"]
    created = command("queues", "create", name, "--partitions", "2", "--visibility-timeout", "20", "--max-deliveries", "3")
    assert created.lines[0].startswith(f"Created {name}.")
    (found,) = command("queues", "describe", name, "--json").documents
    assert (found["state"], found["workers"], found["unsettled"], len(found["partitions"])) == ("Empty", 0, 0, 2)
    assert found["oldest_seconds"] == 0
    assert found["settings"]["share.record.lock.duration.ms"] == "20000"
    assert found["settings"]["share.delivery.count.limit"] == "3"
    assert command("queues", "send", name, "one", "two", "--key", "k").lines == [f"Sent 2 jobs to {name}."]
    sent = command("queues", "send", name, "--json", stdin=b"three\n").documents
    assert [each["queue"] for each in sent] == [name]
    # Looking releases what was seen; with --ack it is done.
    assert sorted(command("queues", "receive", name, "--wait", "10").lines)
    jobs = command("queues", "receive", name, "--wait", "10", "--max", "1", "--ack", "--json").documents
    assert [job["queue"] for job in jobs] == [name]
    assert jobs[0]["value"] in ("one", "two", "three")
    assert command("queues", "list", "--json").documents == [
        {"queue": name, "group": name, "state": "Empty", "workers": 0, "unsettled": 2}
    ]
    rows = [line.split() for line in command("queues", "list").lines]
    assert [name, name, "Empty", "0", "2"] in rows
    assert "2 messages not settled, the oldest for " in command("queues", "describe", name).lines[0]
    assert 0 < command("queues", "describe", name, "--json").documents[0]["oldest_seconds"] < 600
    assert command("queues", "purge", name, "--yes").lines == [f"Purged 2 messages of {name}."]
    assert command("queues", "receive", name, "--wait", "0.1").lines == [f"{name} has no job that nobody works on."]
    assert command("queues", "delete", name, "--yes", "--json").documents == [{"queue": name, "group": name, "deleted": True}]
    assert command("queues", "list", "--json").documents == []


def test_mistakes_are_told(command: Command, name: str) -> None:
    for words in (["describe"], ["purge", "--yes"], ["delete", "--yes"]):
        assert command.fails("queues", words[0], name, *words[1:]).startswith(f"there is no topic {name} at ")
    assert f"there is no queue {name}: create it first" in command.fails("queues", "send", name, "one")
    assert f"there is no queue {name}: create it first" in command.fails("queues", "receive", name, "--json")
    assert "share.record.lock.duration.ms" in command.fails("queues", "create", name, "--visibility-timeout", "90000")
    command("queues", "create", name)
    assert command.fails("queues", "create", name).startswith(f"there is a topic {name} already")
    assert "plaintext only" in command.fails("queues", "list", "-X", "security.protocol=SSL")


def test_a_job_that_its_topic_refuses(command: Command, name: str) -> None:
    command("queues", "create", name)
    command("topics", "alter", name, "--config", "max.message.bytes=1000")
    # Jobs are compressed, and random ones stay large.
    error = command.fails("queues", "send", name, secrets.token_hex(5000))
    assert error.startswith(f"the message has 10,000 bytes, which is more than max.message.bytes of topic {name} (1,000) allows")


@pytest.mark.tidelog_only
def test_what_has_become_of_the_messages_is_described(command: Command, name: str) -> None:
    command("queues", "create", name, "--dead-letters")
    (found,) = command("queues", "describe", name, "--json").documents
    assert [found[each] for each in ("available", "delayed", "acquired", "redelivered", "dead")] == [None] * 4 + [0]
    with Queue(command.bootstrap, name) as queue:
        for value in ("held", "done", "bad", "failed"):
            queue.send(value).result()
        jobs = receive(queue, 4)
        queue.send("later", delay=600).result()
        assert [job.text() for job in jobs] == ["held", "done", "bad", "failed"]
        jobs[1].ack()
        jobs[2].reject()
        jobs[3].nack()
        (again,) = receive(queue, 1)
        # The delayed one counts as such when somebody has looked at it.
        assert queue.receive(10, wait=0.5) == []
        again.nack()
        (found,) = command("queues", "describe", name, "--json").documents
        figures = {each: found[each] for each in ("unsettled", "available", "delayed", "acquired", "redelivered", "dead")}
        assert figures == {"unsettled": 3, "available": 1, "delayed": 1, "acquired": 1, "redelivered": 1, "dead": 1}
        assert found["held_up_by"] == {"settled_behind": 2, "partition": 0, "offset": 0}
        assert 0 < found["oldest_seconds"] < 600
        lines = command("queues", "describe", name).lines
        assert f"1 dead letter: tidelog dlq list {name}.{name}.dlq" in lines
        assert "Partition 0 is held up by offset 0, behind which 2 messages are settled." in lines
        at = lines.index("Partition  Available  Delayed  Acquired  Redelivered  Oldest")
        assert lines[at + 1].split()[:5] == ["0", "1", "1", "1", "1"]
    # Without a worker nobody looks at what is delayed, but the failed delivery is remembered.
    (found,) = command("queues", "describe", name, "--json").documents
    assert (found["acquired"], found["delayed"], found["redelivered"]) == (0, None, 2)


@pytest.mark.tidelog_only
def test_the_dead_letters_of_a_queue_are_listed_and_replayed(command: Command, name: str) -> None:
    letters = f"{name}.{name}.dlq"
    assert f"Its dead letters: tidelog dlq list {letters}" in command("queues", "create", name, "--dead-letters").lines
    with Queue(command.bootstrap, name) as queue:
        queue.send("bad", key="k", headers={"trace": "7"}, ttl=3600)
        queue.send("good")
        jobs = receive(queue, 2)
        jobs[0].reject()
        jobs[1].ack()
    (count,) = command("dlq", "list", letters, "--json").documents
    assert (count["group"], count["error"], count["letters"]) == (name, "Rejected", 1)
    assert letters in [depth["topic"] for depth in command("dlq", "depth", "--json").documents if depth["letters"]]
    (shown,) = command("dlq", "show", letters, "0:0", "--json").documents
    assert shown["value"] == "bad"
    assert "which has no retry topic" in command.fails("dlq", "replay", letters, "--yes")
    (done,) = command("dlq", "replay", letters, "--to-origin", "--yes", "--json").documents
    assert (done["letters"], done["targets"]) == (1, {name: 1})
    with Queue(command.bootstrap, name) as queue:
        (job,) = receive(queue, 1)
        assert (job.text(), job.key, job.headers) == ("bad", b"k", {"trace": b"7"})
        job.ack()
    assert command("dlq", "list", letters, "--json").documents == []


def test_workers_must_be_stopped_first(command: Command, name: str) -> None:
    command("queues", "create", name)
    with Queue(command.bootstrap, name) as queue:
        queue.receive()
        for verb in ("purge", "delete"):
            assert command.fails("queues", verb, name, "--yes") == f"group {name} has 1 worker; stop them first"
        assert command("queues", "describe", name, "--json").documents[0]["workers"] == 1
    command("queues", "delete", name, "--yes")


@pytest.mark.tidelog_only
def test_a_queue_delays_jobs_and_a_topic_is_adopted(command: Command, name: str) -> None:
    (created,) = command(
        "queues", "create", name, "--ttl", "3600", "--config", "retention.ms=3600000", "--order", "key", "--json"
    ).documents
    assert created["settings"]["tidelog.share.order"] == "key"
    assert created["configs"] == {
        "retention.ms": "3600000",
        "tidelog.queue.enable": "true",
        "tidelog.queue.ttl.ms": "3600000",
    }
    command("queues", "send", name, "later", "--delay", "600")
    command("queues", "send", name, "now", "--ttl", "1800")
    (job,) = command("queues", "receive", name, "--wait", "10", "--ack", "--json").documents
    assert job["value"] == "now"
    assert "expected less than 3600 seconds" in command.fails("queues", "send", name, "x", "--delay", "7200")
    plain = f"{name}-plain"
    assert command("topics", "create", plain).lines
    assert command("produce", plain, stdin=b"old\n").code == 0
    assert "this is an ordinary one" in command.fails("queues", "send", plain, "x", "--delay", "1")
    assert "--adopt" in command.fails("queues", "create", plain)
    assert command("topics", "create", f"{plain}-table", "--config", "cleanup.policy=compact").lines
    assert "--config cleanup.policy=delete" in command.fails("queues", "create", f"{plain}-table", "--adopt")
    assert command("queues", "create", f"{plain}-table", "--adopt", "--config", "cleanup.policy=delete").code == 0
    assert command("queues", "create", plain, "--adopt").lines[0].startswith(f"Adopted {plain}.")
    command("queues", "send", plain, "later", "--delay", "600")
    (job,) = command("queues", "receive", plain, "--wait", "10", "--ack", "--json").documents
    assert job["value"] == "old"
