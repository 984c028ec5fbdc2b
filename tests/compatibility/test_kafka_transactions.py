"""The calls about transactions on Apache Kafka, as on our own broker. Runs under ``make compat``."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cli.command import Command
from tests.client.transactions.wire_producer import TIMEOUT_MS, WireProducer
from tests.compatibility.apache_kafka import NODE_ID, ApacheKafka, KafkaUnavailable, kafka_classpath, run_tool, wait_until
from tests.compatibility.kafka_client import admin_client, create_topic, read_partition
from tidelog.client.transactions.admin import AbortSpecification, TransactionAdmin
from tidelog.client.transactions.fenced_writer import FencedWriter, WriterFenced
from tidelog.client.transactions.hanging import find_hanging
from tidelog.client.wire.brokers import Brokers
from tidelog.client.wire.errors import BrokerError, UnknownPartition
from tidelog.wire.errors import ErrorCode

pytestmark = pytest.mark.apache_kafka

HOUR_MS = 3_600_000
LONGEST_MS = 900_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    # Verification would not let a hanging transaction come about.
    configs = {"transaction.partition.verification.enable": "false"}
    with ApacheKafka(Path(tmp_path_factory.mktemp("kafka")), configs=configs) as kafka:
        yield kafka


@pytest.fixture
def admin(kafka: ApacheKafka) -> Iterator[TransactionAdmin]:
    with TransactionAdmin(kafka.bootstrap_servers) as admin:
        yield admin


def new_topic(kafka: ApacheKafka, name: str) -> str:
    create_topic(admin_client(kafka.bootstrap_servers), name, partitions=2)
    return name


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_transaction_from_its_begin_to_its_end(kafka: ApacheKafka, admin: TransactionAdmin) -> None:
    topic = new_topic(kafka, "whole")
    assert admin.describe_transactions(["payments"]) == {}
    with WireProducer(kafka.bootstrap_servers, "payments") as producer:
        producer.init()
        (empty,) = admin.describe_transactions(["payments"]).values()
        assert (empty.state, empty.partitions, empty.timeout_ms, empty.coordinator) == ("Empty", (), TIMEOUT_MS, NODE_ID)
        producer.add_partition(topic, 1)
        written_ms = now_ms()
        producer.produce(topic, 1, b"x", timestamp_ms=written_ms)
        (ongoing,) = admin.describe_transactions(["payments"]).values()
        assert (ongoing.state, ongoing.partitions) == ("Ongoing", ((topic, 1),))
        assert ongoing.producer_id == producer.producer_id
        assert abs(written_ms - ongoing.start_time_ms) < 60_000
        (state,) = admin.describe_producers([(topic, 1)]).producers[topic, 1]
        assert state == (producer.producer_id, producer.producer_epoch, 0, written_ms, -1, 0)
        assert [each[:1] for each in admin.list_transactions(states=["Ongoing"])] == [("payments",)]
        assert [each[:1] for each in admin.list_transactions(producer_ids=[producer.producer_id])] == [("payments",)]
        assert [each[:1] for each in admin.list_transactions(pattern="pay.*")] == [("payments",)]
        assert admin.list_transactions(pattern="pay") == []
        assert admin.list_transactions(duration_ms=HOUR_MS, states=["Ongoing"]) == []
        producer.end(is_commit=True)
        wait_until(lambda: admin.describe_transactions(["payments"])["payments"].state == "CompleteCommit", "it is committed")


def test_a_hanging_transaction_is_found_and_ended(kafka: ApacheKafka, admin: TransactionAdmin) -> None:
    topic = new_topic(kafka, "hanging")
    places = [(topic, 0), (topic, 1)]
    with WireProducer(kafka.bootstrap_servers, "late") as late:
        late.init()
        late.add_partition(topic, 0)
        late.produce(topic, 0, b"in time", timestamp_ms=now_ms() - HOUR_MS)
        found = find_hanging(admin, places, longest_timeout_ms=LONGEST_MS, now_ms=now_ms())
        assert (found.hanging, found.open_transactions) == ([], 1)
        late.produce(topic, 1, b"never added", timestamp_ms=now_ms() - HOUR_MS)
        (verdict,) = find_hanging(admin, places, longest_timeout_ms=LONGEST_MS, now_ms=now_ms()).hanging
        assert (verdict.transaction.partition, verdict.reason) == (1, "late is Ongoing, without this partition")
        assert read_partition(kafka.bootstrap_servers, topic, 1, committed_only=True).end_offset == 0
        admin.abort_transaction(verdict.transaction.abort)
        assert find_hanging(admin, places, longest_timeout_ms=LONGEST_MS, now_ms=now_ms()).hanging == []
        assert read_partition(kafka.bootstrap_servers, topic, 1, committed_only=True).end_offset == 2


def test_kafka_s_own_tool_finds_the_same(
    kafka: ApacheKafka, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka, "ghosts")
    with WireProducer(kafka.bootstrap_servers, "ghost", producer_id=777_777) as ghost:
        ghost.produce(topic, 1, b"x", timestamp_ms=now_ms() - HOUR_MS)
    command = Command(kafka.bootstrap_servers, capsys, monkeypatch)
    (ours,) = command("transactions", "hanging", "--topic", topic, "--json").documents
    words = ["--bootstrap-server", kafka.bootstrap_servers, "find-hanging", "--topic", topic]
    theirs = run_tool("org.apache.kafka.tools.TransactionsCommand", *words).splitlines()[-1].split()
    fields = ("topic", "partition", "producer_id", "producer_epoch", "coordinator_epoch", "transaction_start_offset")
    assert theirs[: len(fields)] == [str(ours[field]) for field in fields]
    abort = ("transactions", "abort", topic, "--partition", "1", "--start-offset", "0", "--execute")
    assert command(*abort).lines[-1] == f"Aborted the transaction of producer 777777 in {topic}-1."
    assert command("transactions", "hanging", "--topic", topic).lines == ["No hanging transaction in 2 partitions."]


def test_refusals(kafka: ApacheKafka, admin: TransactionAdmin) -> None:
    topic = new_topic(kafka, "refusals")
    with WireProducer(kafka.bootstrap_servers, "ghost", producer_id=888_888, producer_epoch=5) as ghost:
        ghost.produce(topic, 0, b"x")
        with pytest.raises(BrokerError) as raised:
            admin.abort_transaction(AbortSpecification(topic, 0, 888_888, 4, 0))
        assert raised.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        admin.abort_transaction(AbortSpecification(topic, 0, 888_888, 5, 9))
        ghost.produce(topic, 0, b"y")
        with pytest.raises(BrokerError) as raised:
            admin.abort_transaction(AbortSpecification(topic, 0, 888_888, 5, 8))
        assert raised.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    described = admin.describe_producers([(topic, 7)])
    assert isinstance(described.failures[topic, 7], UnknownPartition)
    with pytest.raises(BrokerError) as raised:
        admin.list_transactions(pattern="(")
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.fixture(scope="module", params=[0, 2])
def kafka_by_version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """With that transaction.version: what a client's request means in a transaction differs between them."""
    version = int(request.param)
    try:
        kafka_classpath()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    with ApacheKafka(Path(tmp_path_factory.mktemp(f"kafka-{version}"))) as kafka:
        words = ["--bootstrap-server", kafka.bootstrap_servers]
        tool = "org.apache.kafka.tools.FeatureCommand"
        if version == 0:
            run_tool(tool, *words, "downgrade", "--feature", "transaction.version=0")
        described = run_tool(tool, *words, "describe")
        assert f"FinalizedVersionLevel: {version}" in next(
            line for line in described.splitlines() if "transaction.version" in line
        )
        yield kafka


def transactional_producer(kafka: ApacheKafka, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


def test_another_process_s_transaction_is_ended(kafka_by_version: ApacheKafka) -> None:
    """As librdkafka left it: of the second version it adds no partitions itself."""
    kafka = kafka_by_version
    topic = new_topic(kafka, "ended")
    with TransactionAdmin(kafka.bootstrap_servers) as admin:
        handles = {}
        for name in ("kept", "dropped", "taken"):
            producer = transactional_producer(kafka, name)
            producer.produce(topic, name.encode(), partition=0)
            assert producer.flush(60) == 0
            (description,) = admin.describe_transactions([name]).values()
            assert (description.state, description.partitions) == ("Ongoing", ((topic, 0),))
            handles[name] = description.handle
            del producer
        for _ in range(3):  # Asked again, it is as it was.
            admin.end_transaction(handles["kept"], is_commit=True)
            admin.end_transaction(handles["dropped"], is_commit=False)
        wait_until(lambda: admin.describe_transactions(["kept"])["kept"].state == "CompleteCommit", "it is committed")
        assert admin.describe_transactions(["kept"])["kept"].handle == handles["kept"]
        with pytest.raises(BrokerError) as raised:
            admin.end_transaction(handles["dropped"], is_commit=True)
        assert raised.value.code is ErrorCode.INVALID_TXN_STATE
        transactional_producer(kafka, "taken")  # Takes the id over, which aborts what was open.
        with pytest.raises(BrokerError) as raised:
            admin.end_transaction(handles["taken"], is_commit=True)
        assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
        with pytest.raises(BrokerError) as raised:
            admin.end_transaction(handles["kept"]._replace(transactional_id="nobody"), is_commit=True)
        assert raised.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert admin.longest_timeout_ms() == LONGEST_MS
    records = read_partition(kafka.bootstrap_servers, topic, 0, committed_only=True).records
    assert [record.value for record in records] == [b"kept"]


def test_compare_and_set(kafka_by_version: ApacheKafka) -> None:
    kafka = kafka_by_version
    topic = new_topic(kafka, "compared")
    brokers = Brokers(kafka.bootstrap_servers, "test", 3, 30)
    early, late = FencedWriter(brokers, "ledger", 60_000), FencedWriter(brokers, "ledger", 60_000)
    early.begin()
    early.write(topic, 0, [(b"key", b"early")], now_ms())
    late.begin()
    with pytest.raises(WriterFenced):
        early.commit()
    for value in (b"late", b"later"):
        late.write(topic, 0, [(b"key", value)], now_ms())
    late.commit()
    late.begin()
    late.write(topic, 0, [(b"key", b"latest")], now_ms())
    late.commit()
    brokers.close()
    records = read_partition(kafka.bootstrap_servers, topic, 0, committed_only=True).records
    assert [record.value for record in records] == [b"late", b"later", b"latest"]
