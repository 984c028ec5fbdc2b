"""``tidelog transactions`` on a broker that verifies no transaction, so that hanging ones can be made."""

import secrets
import time
from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.client.transactions.wire_producer import WireProducer
from tests.client.wire.fake_broker import FakeBroker
from tests.compatibility.kafka_client import read_partition
from tidelog.cli.main import main
from tidelog.cli.transactions import choose_partitions
from tidelog.client.transactions.admin import TransactionAdmin
from tidelog.testing import Broker
from tidelog.wire.protocol import ApiKey

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def careless() -> Iterator[Broker]:
    with Broker(configs={"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def command(careless: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(careless.bootstrap_servers, capsys, monkeypatch)


@pytest.fixture
def ongoing(command: Command, topic: str) -> Iterator[WireProducer]:
    """An open transaction in partition 0, whose only record is an hour old."""
    with WireProducer(command.bootstrap, f"id-{secrets.token_hex(4)}") as producer:
        producer.init()
        producer.add_partition(topic, 0)
        producer.produce(topic, 0, b"x", timestamp_ms=hour_ago())
        yield producer


@pytest.fixture
def ghost(command: Command, topic: str) -> WireProducer:
    """A hanging transaction in partition 1, of a producer that no coordinator knows."""
    with WireProducer(command.bootstrap, "ghost", producer_id=900_000 + secrets.randbelow(90_000)) as producer:
        producer.produce(topic, 1, b"committed never", timestamp_ms=hour_ago())
        return producer


def hour_ago() -> int:
    return int(time.time() * 1000) - HOUR_MS


def test_a_cluster_without_transactions(command: Command) -> None:
    with Broker() as broker:
        empty = Command(broker.bootstrap_servers, command._capsys, command._monkeypatch)
        assert empty("transactions", "list").lines == [
            "There are no transactional ids yet: no producer has set transactional.id. See docs/reference/transactions.md"
        ]
        assert empty("transactions", "list", "--json").out == ""
        assert empty("transactions", "hanging").lines == ["There is no hanging transaction in 0 partitions."]
        assert empty("transactions", "hanging", "--json").out == ""


def test_list(command: Command, ongoing: WireProducer) -> None:
    name = ongoing.transactional_id
    wanted = {"transactional_id": name, "coordinator": 1, "producer_id": ongoing.producer_id, "state": "Ongoing"}
    assert wanted in command("transactions", "list", "--json").documents
    assert command("transactions", "list", "--producer-id", str(ongoing.producer_id), "--json").documents == [wanted]
    assert command("transactions", "list", "--pattern", name, "--state", "empty,ongoing", "--json").documents == [wanted]
    table = command("transactions", "list").out
    assert name in table
    assert "Transactional id" in table
    nothing = ["No transactional id matches. To see all of them: tidelog transactions list"]
    assert command("transactions", "list", "--pattern", name, "--state", "Empty").lines == nothing
    assert command("transactions", "list", "--duration", "86400000", "--pattern", name, "--state", "Ongoing").lines == nothing


def test_describe(command: Command, ongoing: WireProducer, topic: str) -> None:
    name = ongoing.transactional_id
    (found,) = command("transactions", "describe", name, "--json").documents
    duration_ms, start_time_ms = found.pop("duration_ms"), found.pop("start_time_ms")
    assert found == {
        "transactional_id": name,
        "coordinator": 1,
        "producer_id": ongoing.producer_id,
        "producer_epoch": 0,
        "state": "Ongoing",
        "timeout_ms": 60_000,
        "partitions": [{"topic": topic, "partition": 0}],
    }
    assert 0 <= duration_ms < 60_000
    assert abs(start_time_ms + duration_ms - time.time() * 1000) < 60_000
    table = command("transactions", "describe", "--transactional-id", name).out
    assert f"{topic}(0)" in table
    assert " 1m " in table


def test_describe_one_without_a_transaction(command: Command) -> None:
    with WireProducer(command.bootstrap, f"id-{secrets.token_hex(4)}") as producer:
        producer.init()
    (found,) = command("transactions", "describe", producer.transactional_id, "--json").documents
    assert (found["state"], found["start_time_ms"], found["duration_ms"]) == ("Empty", None, None)
    assert " Empty " in command("transactions", "describe", producer.transactional_id).out


def test_describe_producers(command: Command, ongoing: WireProducer, ghost: WireProducer, topic: str) -> None:
    found = command("transactions", "describe-producers", topic, "--json").documents
    assert [(each["partition"], each["producer_id"], each["transaction_start_offset"]) for each in found] == [
        (0, ongoing.producer_id, 0),
        (1, ghost.producer_id, 0),
    ]
    assert (found[1]["producer_epoch"], found[1]["coordinator_epoch"], found[1]["last_sequence"]) == (0, -1, 0)
    (only,) = command("transactions", "describe-producers", "--topic", topic, "--partition", "1", "--json").documents
    assert only == found[1]
    table = command("transactions", "describe-producers", topic, "--partition", "1").out
    assert str(ghost.producer_id) in table
    assert " 1h " in table


def test_a_topic_that_nobody_writes_to(command: Command, topic: str) -> None:
    assert command("transactions", "describe-producers", topic).lines == [
        f"No idempotent or transactional producer has written to {topic} recently."
    ]


def test_a_hanging_transaction_is_found_and_ended(
    command: Command, ongoing: WireProducer, ghost: WireProducer, topic: str
) -> None:
    (found,) = command("transactions", "hanging", "--topic", topic, "--json").documents
    assert (found["topic"], found["partition"], found["producer_id"]) == (topic, 1, ghost.producer_id)
    assert (found["transaction_start_offset"], found["is_hanging"], found["transactional_id"]) == (0, True, None)
    lines = command("transactions", "find-hanging", "--topic", topic).lines
    assert any("no coordinator knows the producer" in line for line in lines)
    advice = f"tidelog transactions abort {topic} --partition 1 --start-offset 0"
    assert lines[-1] == f"To end the first one: {advice}"
    abort = advice.split()[1:]

    assert command(*abort).lines[-1] == "Nothing was changed. To abort it, repeat the command with --execute."
    assert read_partition(command.bootstrap, topic, 1, committed_only=True).end_offset == 0
    assert command(*abort, "--execute").lines[-1] == f"Aborted the transaction of producer {ghost.producer_id} in {topic}-1."
    assert read_partition(command.bootstrap, topic, 1, committed_only=True).end_offset == 2
    assert command("transactions", "hanging", "--topic", topic).lines == [
        "There is no hanging transaction in 2 partitions (1 transaction open)."
    ]
    assert "no open transaction at offset 0" in command.fails(*abort, "--execute")


def test_what_was_written_lately_is_not_hanging(command: Command, topic: str) -> None:
    with WireProducer(command.bootstrap, "ghost", producer_id=899_999) as young:
        young.produce(topic, 0, b"x", timestamp_ms=int(time.time() * 1000) - 20 * 60_000)
    hanging = ("transactions", "hanging", "--topic", topic, "--json", "--max-transaction-timeout")
    assert len(command(*hanging, "15").documents) == 1
    assert command(*hanging, "30").documents == []


def test_where_to_look(command: Command, ghost: WireProducer, topic: str) -> None:
    hanging = ("transactions", "hanging", "--json", "--topic", topic)
    assert len(command(*hanging, "--partition", "1", "--broker-id", "1").documents) == 1
    assert command(*hanging, "--partition", "0").documents == []
    assert topic in [each["topic"] for each in command("transactions", "hanging", "--json").documents]
    assert "there is no broker 7, only 1" in command.fails("transactions", "hanging", "--broker-id", "7")
    assert f"there is no partition {topic}-5" in command.fails(*hanging, "--partition", "5")


def test_a_transaction_that_its_coordinator_has_is_not_aborted_without_force(
    command: Command, ongoing: WireProducer, topic: str
) -> None:
    abort = ("transactions", "abort", topic, "--partition", "0", "--producer-id", str(ongoing.producer_id))
    is_ongoing = f"{ongoing.transactional_id} is Ongoing"
    assert command(*abort).lines[-1].startswith(f"Nothing was changed. The transaction is not hanging: {is_ongoing}")
    assert command.fails(*abort, "--execute").startswith(f"the transaction is not hanging: {is_ongoing}")
    assert read_partition(command.bootstrap, topic, 0, committed_only=True).end_offset == 0
    (done,) = command(*abort, "--execute", "--force", "--json").documents
    assert (done["executed"], done["is_hanging"]) == (True, False)
    assert read_partition(command.bootstrap, topic, 0, committed_only=True).end_offset == 2


def test_epochs_can_be_given(command: Command, ghost: WireProducer, topic: str) -> None:
    abort = ("transactions", "abort", topic, "--partition", "1", "--start-offset", "0", "--execute")
    with WireProducer(command.bootstrap, "ghost", ghost.producer_id, producer_epoch=4) as newer:
        newer.produce(topic, 1, b"y", timestamp_ms=hour_ago())
    assert "INVALID_PRODUCER_EPOCH" in command.fails(*abort, "--producer-epoch", "3")
    command(*abort, "--producer-epoch", "4", "--coordinator-epoch", "6")
    (after,) = command("transactions", "describe-producers", topic, "--partition", "1", "--json").documents
    assert (after["transaction_start_offset"], after["coordinator_epoch"]) == (None, 6)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("list", "--state", "Bored"), "--state Bored: expected any of Empty, Ongoing"),
        (("list", "--pattern", "("), "INVALID_REGULAR_EXPRESSION"),
        (
            ("list", "-X", "security.protocol=SASL_SSL"),
            "security.protocol SASL_SSL: these calls speak plaintext only",
        ),
        (("list", "-X", "sasl.username=me"), "speak plaintext only, neither TLS nor SASL"),
        (("list", "-X", "acks=1"), "-X acks: commands about transactions know only"),
        (("list", "-X", "socket.timeout.ms=0"), "expected milliseconds"),
        (("describe",), "no transactional id is given"),
        (("describe", ""), "no transactional id is given"),
        (("describe", "nobody"), "no coordinator knows nobody; to see the ids: tidelog transactions list"),
        (("describe-producers",), "no topic is given; add its name"),
        (("describe-producers", "a", "--topic", "b"), "the command line names two topics, a and b; give one"),
        (("describe-producers", "no-such"), "there is no topic no-such"),
        (("hanging", "--topic", "no-such"), "there is no topic no-such"),
        (("abort",), "no topic is given; add its name"),
        (("abort", "a", "--topic", "b"), "the command line names two topics, a and b; give one"),
        (("abort", "a", "--partition", "0"), "which transaction?"),
        (("abort", "a", "--partition", "0", "--start-offset", "1", "--producer-id", "2"), "which transaction?"),
        (
            ("abort", "a", "--partition", "0", "--start-offset", "1", "--execute", "--dry-run"),
            "only one of --execute and --dry-run",
        ),
        (("abort", "no-such", "--partition", "0", "--start-offset", "1"), "there is no topic no-such"),
    ],
)
def test_one_line_says_what_is_wrong(command: Command, words: tuple[str, ...], reason: str) -> None:
    assert reason in command.fails("transactions", *words)


def test_options_that_the_client_takes(command: Command) -> None:
    words = ["-X", "security.protocol=plaintext", "-X", "client.id=me", "-X", "socket.timeout.ms=9000"]
    assert command("transactions", "list", "--json", *words).code == 0


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", "list", "--bootstrap", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "tidelog: no broker answers at 127.0.0.1:1: connection refused\n"


@pytest.mark.parametrize("name", ["list", "describe", "describe-producers", "hanging", "abort"])
def test_help_has_an_example(command: Command, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"Example: tidelog transactions {name}" in command("transactions", name, "--help").out


def test_a_partition_that_cannot_be_asked_makes_the_answer_incomplete(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeBroker() as fake:
        fake.answer(ApiKey.METADATA, fake.metadata(1, {"t": 1}, leader=-1))
        command = Command(fake.bootstrap_servers, capsys, monkeypatch)
        for words in (("hanging",), ("describe-producers", "t")):
            result = command("transactions", *words, "-X", "socket.timeout.ms=1000")
            assert result.code == 1
            assert result.err.startswith("warning: t-0 could not be queried: t-0: The partition has no leader")


def test_only_partitions_with_a_replica_on_the_broker() -> None:
    with FakeBroker() as fake:
        metadata = fake.metadata(1, {"t": 3})
        metadata["brokers"].append({"node_id": 2, "host": "127.0.0.1", "port": fake.port})
        metadata["topics"][0]["partitions"][1]["replica_nodes"] = [2]
        fake.answer(ApiKey.METADATA, metadata)
        with TransactionAdmin(fake.bootstrap_servers) as admin:
            assert choose_partitions(admin, [], [], 2) == [("t", 1)]
            assert choose_partitions(admin, ["t"], [0, 1], 1) == [("t", 0)]
            assert choose_partitions(admin, ["t"], []) == [("t", 0), ("t", 1), ("t", 2)]
