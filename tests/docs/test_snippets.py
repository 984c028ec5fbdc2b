"""The snippets of the guides and of the short reference pages as written: programs in this process, commands in a shell.

Each test unpacks all blocks of its page, so a block that is added to a page has to be added here. ``RUN_BY`` says for every page
that has blocks which tests run them, and what is not run. Whole programs under ``examples/`` are run by ``tests/examples``.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.deadletters.letters import Letters
from tests.docs.shell import ADDRESS, ROOT, Shell
from tidelog import Backoff, Consumer, Producer, Queue, Reject, Retry, Table, Worker
from tidelog.client.admin import Admin
from tidelog.client.errors import TransactionFailed
from tidelog.deadletters import DeadLetters
from tidelog.testing import Broker
from tidelog.testing.environment import BrokerEnvironment

HERE = "tests/docs/test_snippets.py"
RUN_BY = {
    "README.md": "tests/docs/test_readme.py",
    "docs/ARCHITECTURE.md": "pictures",
    "docs/DURABILITY.md": "make plug, which wants root",
    "docs/OPERATIONS.md": "tests/docs/test_operations.py and tests/docs/test_clusters.py, without what wants root",
    "docs/PIPELINES.md": "tests/docs/test_pipelines.py and tests/spark/pipelines/test_pipelines_page.py, without DuckDB",
    "docs/SPARK.md": "tests/spark/test_spark_page.py",
    "docs/guides/choosing-keys.md": HERE,
    "docs/guides/dead-letter-tools.md": HERE,
    "docs/guides/delivery-guarantees.md": HERE,
    "docs/guides/hot-partitions.md": HERE,
    "docs/guides/priorities.md": HERE,
    "docs/guides/queues.md": HERE,
    "docs/guides/retries-and-dead-letters.md": HERE,
    "docs/guides/scaling-on-lag.md": "a formula; the rest is an example",
    "docs/guides/tables.md": HERE,
    "docs/guides/the-dial.md": "tests/docs/test_dial.py",
    "docs/guides/tracing.md": "what an example prints",
    "docs/reference/client-metrics.md": "a tool of Apache Kafka's",
    "docs/reference/command-line.md": HERE,
    "docs/reference/groups.md": "tests/docs/test_reference.py",
    "docs/reference/metrics.md": HERE,
    "docs/reference/quorum.md": "a picture",
    "docs/reference/quotas.md": HERE,
    "docs/reference/storage.md": HERE,
    "docs/reference/transactions.md": "tests/docs/test_reference.py",
    "docs/tutorial/first-steps.md": "tests/docs/test_tutorial.py",
}


class Enough(Exception):
    """Ends a loop that runs for ever on its page."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def shell(broker: Broker, tmp_path: Path) -> Shell:
    return Shell(tmp_path, broker.bootstrap_servers)


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(broker.bootstrap_servers) as producer:
        yield producer


def page(name: str) -> list[tuple[str, str]]:
    """The blocks of a page with their kinds, except those that only start an example."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / name).read_text(), re.DOTALL | re.MULTILINE)
    return [(kind, block) for kind, block in found if not block.startswith("python examples/")]


def python_of(name: str) -> list[str]:
    return [block for kind, block in page(name) if kind == "python"]


def run(block: str, broker: Broker, **names: Any) -> dict[str, Any]:
    """Run a program of a page with these names; returns all that it knows at its end."""
    exec(block.replace(ADDRESS, broker.bootstrap_servers), names)
    return names


def send(producer: Producer, topic: str, values: list[str], key: str | None = None) -> None:
    for value in values:
        producer.send(topic, value, key=key)
    producer.flush(60)


def test_every_page_with_blocks_is_run_or_says_why_not() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sorted(str(each.relative_to(ROOT)) for each in pages if "\n```" in each.read_text()) == sorted(RUN_BY)
    for tests in RUN_BY.values():
        assert [name for name in re.findall(r"tests/\S+\.py", tests) if not (ROOT / name).is_file()] == []


def test_choosing_keys(broker: Broker, producer: Producer) -> None:
    ((_, block),) = page("guides/choosing-keys.md")
    run(block, broker, producer=producer)
    producer.flush(60)
    with Consumer(broker.bootstrap_servers, topics=["orders"]) as consumer:
        (message,) = consumer.poll(timeout=60)
    assert (message.key, message.json()) == (b"customer-42", {"step": "paid"})


def test_dead_letter_tools(broker: Broker, shell: Shell, tmp_path: Path) -> None:
    (_, commands), (_, program), (_, cron) = page("guides/dead-letter-tools.md")
    letters = Letters(broker.bootstrap_servers)
    for number in range(40):
        kind = "TimeoutError" if number % 2 else "ValidationError"
        letters.write(letters.letter(partition=0, exception_class=kind), key=b"one")
    replacements = {"orders.email.dlq": letters.topic}
    # In a terminal it asks.
    said = {line: shell.run(line.replace("dlq discard", "dlq discard --yes"), replacements) for line in commands.splitlines()}
    assert [line for line, out in said.items() if not out] == []
    (replayed, discarded) = (out for line, out in said.items() if re.search(r"dlq (replay|discard)", line))
    assert replayed.startswith("Replayed 20 letters")
    assert discarded.startswith("Discarded 20 letters")
    letters.write(*(letters.letter(partition=0, exception_class="TimeoutError") for _ in range(3)), key=b"one")
    names = run(program.replace("orders.email.dlq", letters.topic), broker, DeadLetters=DeadLetters)
    assert sum(each.letters for each in names["letters"].depth()) == 0
    schedule, command = cron.replace("/var/lib/node_exporter", str(tmp_path)).split(" tidelog ", 1)
    assert schedule == "* * * * *"
    shell.run(f"tidelog {command}")
    assert "# TYPE " in (tmp_path / "dlq.prom").read_text()


def test_delivery_guarantees(broker: Broker, producer: Producer) -> None:
    (_, at_least_once), (_, exactly_once) = page("guides/delivery-guarantees.md")
    values = [str(number) for number in range(20)]
    send(producer, "payments", values)

    class UntilAll(Consumer):
        """The loop of the page ends at the first poll after all messages."""

        found = 0

        def poll(self, *arguments: Any, **more: Any) -> Any:
            if self.found == len(values):
                raise Enough
            messages = super().poll(*arguments, **more)
            self.found += len(messages)
            return messages

    handled: list[str] = []
    with pytest.raises(Enough):
        run(at_least_once, broker, Consumer=UntilAll, handle=lambda message: handled.append(message.text()))
    assert handled == values
    with Admin(broker.bootstrap_servers) as admin:
        assert sum(admin.group_offsets("billing").values()) == len(values)

    with pytest.raises(Enough):
        run(
            exactly_once,
            broker,
            Producer=Producer,
            Consumer=UntilAll,
            TransactionFailed=TransactionFailed,
            servers=broker.bootstrap_servers,
            receipt_for=lambda message: f"receipt {message.text()}",
        )
    with Consumer(broker.bootstrap_servers, topics=["receipts"]) as consumer:
        receipts: list[str | None] = []
        while len(receipts) < len(values):
            receipts += [message.text() for message in consumer.poll(timeout=60)]
    assert receipts == [f"receipt {value}" for value in values]


def test_hot_partitions(broker: Broker, producer: Producer, shell: Shell) -> None:
    (_, hotkeys), (_, spreading), (_, merging) = page("guides/hot-partitions.md")
    shell.run("tidelog topics create views --partitions 8")
    send(producer, "views", ["a", "b"], key="viral")
    assert "viral" in shell.run(hotkeys)
    names = run(spreading, broker, producer=producer, view_id="view-1")
    assert re.fullmatch(r"viral#\d", names["key"])
    call, _, result = merging.splitlines()[-1].partition("  # ")
    names = run(merging, broker, **names)
    assert eval(call, names) == eval(result)


def test_priorities(broker: Broker) -> None:
    (_, weighted), (_, set_aside) = page("guides/priorities.md")
    assert isinstance(run(weighted, broker, Worker=Worker)["worker"], Worker)
    names = run(set_aside, broker, Worker=Worker, Producer=Producer)
    names["producer"].close()


def test_queues(broker: Broker, shell: Shell) -> None:
    (_, program), (_, delays), (_, picture), (_, commands) = page("guides/queues.md")
    assert "acquired" in picture
    create, *rest = commands.splitlines()
    shell.run(create)

    class TemporaryProblem(Exception):
        pass

    resized: list[str] = []
    names = run(program, broker, resize=resized.append, TemporaryProblem=TemporaryProblem)
    queue: Queue = names["queue"]
    with queue:
        assert resized == ["cat.png"]
        run(delays, broker, queue=queue, datetime=datetime, timedelta=timedelta, UTC=UTC)
        assert queue.receive(max_messages=3, wait=20)[0].text() == "fresh fish"
    # In a terminal they ask.
    said = {line: shell.run(f"{line} --yes" if line.split()[2] in ("purge", "delete") else line) for line in rest}
    assert [line for line, out in said.items() if not out] == []


def test_retries_and_dead_letters(broker: Broker) -> None:
    (_, program), (_, retriable), (_, choosing) = page("guides/retries-and-dead-letters.md")
    run_: list[Any] = []

    class Runs(Worker):
        def run(self) -> bool:
            run_.append(self)
            return True

    names = run(program, broker, Worker=Runs, Backoff=Backoff)
    assert run_ == [names["worker"]]
    given = f'Worker("{broker.bootstrap_servers}", group="email", topics=["orders"],'
    assert retriable.count("Worker(...,") == 2
    run(retriable.replace("Worker(...,", given), broker, Worker=Worker)

    class Bank:
        def is_open(self) -> bool:
            return False

    class Attempt:
        def __init__(self, attempt: int) -> None:
            self.attempt = attempt

    worker = Worker(broker.bootstrap_servers, group="bank", topics=["orders"])
    charge = run(choosing, broker, worker=worker, bank=Bank())["charge"]
    with pytest.raises(Reject, match="asked often enough"):
        charge(Attempt(4))
    with pytest.raises(Retry, match="the bank is closed"):
        charge(Attempt(1))


def test_tables(broker: Broker, producer: Producer) -> None:
    ((_, block),) = page("guides/tables.md")
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("customers", cleanup_policy="compact")
    producer.send("customers", {"name": "Ada"}, key="customer-42").result(60)
    names = run(block, broker, Table=Table)
    with names["customers"]:
        assert eval(block.splitlines()[-1], names) == "Ada"


def test_quotas(shell: Shell) -> None:
    (_, commands), _ = page("reference/quotas.md")
    said = {line: shell.run(line) for line in commands.splitlines()}
    assert "request_percentage" in said["tidelog quotas list"]
    shell.run("tidelog quotas delete --default client-id")


def test_storage(tmp_path: Path) -> None:
    *_, (_, commands) = page("reference/storage.md")
    with Broker(persist=tmp_path / "data") as broker:
        with Producer(broker.bootstrap_servers) as producer:
            send(producer, "orders", ["a", "b"])
        broker.stop()
        said = [Shell(tmp_path, broker.bootstrap_servers).run(commands)]
    assert "sound" in said[0]


def test_metrics(broker: Broker, tmp_path: Path) -> None:
    """The first command is what ``Broker`` does with these settings; a reader has no other broker on the machine."""
    ((_, block),) = page("reference/metrics.md")
    start, ask = block.splitlines()
    assert start == "tidelog start --metrics 127.0.0.1:9644"
    metrics = BrokerEnvironment(None, {})
    with Broker(configs={"tidelog.metrics.listener": metrics.bootstrap_servers}):
        said = Shell(tmp_path, broker.bootstrap_servers).run(ask, {"127.0.0.1:9644": metrics.bootstrap_servers})
    metrics.close()
    assert "# TYPE tidelog_" in said


def test_profiles_and_completion(shell: Shell, tmp_path: Path) -> None:
    (_, profiles), (_, completion) = page("reference/command-line.md")
    shell.environment.update(TIDELOG_PROFILES=str(tmp_path / "profiles.toml"))
    assert "staging" in shell.run(profiles)
    scripts = [line.partition("#")[0].strip() for line in completion.splitlines()]
    assert [re.sub(r'^eval "\$\(|\)"$| \| source$', "", line) for line in scripts] == [
        f"tidelog completion {shell}" for shell in ("bash", "zsh", "fish")
    ]
