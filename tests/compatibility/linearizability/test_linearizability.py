"""Histories of real clients on three brokers that are killed, judged by a checker that is not ours (``make compat``).

Committed positions, decisions about topics, and the ends of transactions must be linearizable: as if each had happened at one
moment between its request and its answer. Brokers end by SIGKILL or SIGTERM, one at a time. They are not paused: a coordinator
that wakes up after its successor was elected may answer OffsetFetch from what it knew, on Tidelog as on Apache Kafka.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compatibility.foreign.cache import SuiteUnavailable
from tests.compatibility.linearizability.clients import (
    LEDGER_PARTITIONS,
    LEDGER_TOPIC,
    POSITIONS_TOPIC,
    THE_END,
    Client,
    PositionClient,
    Reader,
    TopicClient,
    TransactionClient,
)
from tests.compatibility.linearizability.history import History
from tests.compatibility.linearizability.porcupine import judge
from tests.faults.load import wait_until
from tidelog.testing import Cluster

pytestmark = pytest.mark.foreign_suite

FAULTS = 12
FAULT_SECONDS = 3.0
CLIENTS = 3
TRANSACTIONS_MAX = 1_000_000


def judged(history: History) -> dict[str, str]:
    try:
        return judge(history.operations())
    except SuiteUnavailable as error:
        pytest.skip(str(error))


def test_a_forgotten_position_is_found() -> None:
    history = History()
    history.begin("offset:forgotten", "write").answered(value=5)
    history.begin("offset:forgotten", "read").answered(value=-1)
    history.begin("offset:late", "write").lost(value=5)
    for value in (-1, 5, 5):
        history.begin("offset:late", "read").answered(value=value)
    history.begin("offset:lost again", "write").lost(value=5)
    for value in (5, -1):
        history.begin("offset:lost again", "read").answered(value=value)
    assert judged(history) == {"offset:forgotten": "illegal", "offset:late": "ok", "offset:lost again": "illegal"}


def test_a_topic_that_is_created_twice_is_found() -> None:
    history = History()
    for name, kinds in {"twice": ("create", "create"), "again": ("create", "delete", "create"), "none": ("delete",)}.items():
        for kind in kinds:
            history.begin(f"topic:{name}", kind).answered()
    assert judged(history) == {"topic:twice": "illegal", "topic:again": "ok", "topic:none": "illegal"}


def test_a_transaction_with_two_ends_is_found() -> None:
    ends = {"seen": ("commit", "seen"), "undone": ("commit", "absent"), "revived": ("abort", "seen"), "both": ("commit", "abort")}
    history = History()
    for name, kinds in ends.items():
        for kind in kinds:
            history.begin(f"transaction:{name}", kind).answered()
    history.begin("transaction:unanswered", "commit").lost()
    history.begin("transaction:unanswered", "abort").answered()
    history.begin("transaction:unanswered", "absent").answered()
    illegal = dict.fromkeys(("transaction:undone", "transaction:revived", "transaction:both"), "illegal")
    assert judged(history) == {"transaction:seen": "ok", "transaction:unanswered": "ok", **illegal}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.mark.timeout(900)
def test_histories_of_brokers_that_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    servers = cluster.bootstrap_servers
    topics = [NewTopic(POSITIONS_TOPIC, 1, 3), NewTopic(LEDGER_TOPIC, LEDGER_PARTITIONS, 3)]
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics(topics).values():
        created.result(60)
    history = History()
    reader = Reader("reader", servers, history, seed)
    transactions = [
        TransactionClient(f"transactions-{number}", servers, history, seed, range(number, TRANSACTIONS_MAX, CLIENTS))
        for number in range(CLIENTS)
    ]
    others: list[Client] = [
        kind(f"{kind.__name__}-{number}", servers, history, seed)
        for kind in (PositionClient, TopicClient)
        for number in range(CLIENTS)
    ]
    for client in (*others, *transactions, reader):
        client.start()
    for _ in range(FAULTS):
        time.sleep(FAULT_SECONDS)
        node_id = chance.choice(cluster.node_ids)
        if chance.random() < 0.7:
            cluster.kill(node_id)
        else:
            cluster.stop(node_id)
        time.sleep(FAULT_SECONDS)
        cluster.start(node_id)
    for client in (*others, *transactions):
        client.stop()
    for client in (*others, *transactions):
        client.join()
    for client in transactions:
        client.end_what_is_open()
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for partition in range(LEDGER_PARTITIONS):
        producer.produce(LEDGER_TOPIC, b"%d" % THE_END, partition=partition)
    assert producer.flush(60) == 0
    wait_until(reader.is_at_the_end, "the reader is at the end")
    reader.stop()
    reader.join()
    reader.close()
    first, second = map(set, reader.seen)
    assert first == second, "every transaction is whole"
    assert [len(seen) for seen in reader.seen] == [len(first), len(second)], "and nothing is there twice"
    ended = {int(each["key"].partition(":")[2]) for each in history.operations() if each["kind"] in ("commit", "abort")}
    for number in ended - first:
        history.begin(f"transaction:{number}", "absent").answered()
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in history.operations()))
    assert history.problems == []
    counts = {kind: history.count(kind) for kind in ("write", "read", "create", "delete", "commit", "abort")}
    print(counts)
    assert min(counts.values()) >= 50
    verdicts = judged(history)
    assert {key: verdict for key, verdict in verdicts.items() if verdict != "ok"} == {}, f"the history is in {path}"
