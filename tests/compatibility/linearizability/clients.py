"""Clients whose histories can be judged: committed positions, topics that come and go, and the ends of transactions.

Committing and creating is asked once and never again by the client, on a connection of our own: a repeated request could take
effect twice, and no register allows that. Keys change every few seconds, because each operation without an answer makes a history
harder to judge.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compatibility.linearizability.history import NOTHING_TO_DO, History
from tests.faults.load import COMMON
from tidelog.client.wire.connection import BrokerConnection, parse_addresses
from tidelog.client.wire.errors import ClientError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, Fields, encode_request
from tidelog.wire.protocol import ApiKey

KEYS_SECONDS = 2.0
KEYS_AT_ONCE = 3
POSITIONS_TOPIC, LEDGER_TOPIC = "positions", "ledger"
LEDGER_PARTITIONS = 2
SECONDS_MAX = 10.0
PAUSE_SECONDS = 0.2
GROUP_KEY = 0
# The last message of each partition, without a transaction: who sees it has seen the end of all transactions before it.
THE_END = -1
# The versions that these requests are written for.
FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPICS, DELETE_TOPICS = 4, 9, 9, 7, 5


class Client(ABC, threading.Thread):
    """Calls ``step`` until it is stopped, on a connection to one of the brokers at a time."""

    def __init__(self, name: str, bootstrap_servers: str, history: History, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.random = random.Random(f"{name} {seed}")
        self.history = history
        self._addresses = parse_addresses(bootstrap_servers)
        self._connections: dict[tuple[str, int], BrokerConnection] = {}
        self._begun = time.monotonic()
        self._is_over = threading.Event()

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.step()
        except Exception as error:
            self.history.problem(f"{self.name} ended: {error!r}")
        finally:
            for connection in self._connections.values():
                connection.close()

    @abstractmethod
    def step(self) -> None:
        """Make one call, or wait a moment."""

    def stop(self) -> None:
        self._is_over.set()

    def pause(self) -> None:
        self._is_over.wait(PAUSE_SECONDS)

    def some_key(self) -> str:
        generation = int((time.monotonic() - self._begun) / KEYS_SECONDS)
        return f"{generation}-{self.random.randrange(KEYS_AT_ONCE)}"

    def some_address(self) -> tuple[str, int]:
        return self.random.choice(self._addresses)

    def connect(self, address: tuple[str, int]) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = BrokerConnection(*address, self.name, SECONDS_MAX, SECONDS_MAX)
            connection.expect_answers()
        return connection

    def ask(self, address: tuple[str, int], api: ApiKey, version: int, fields: Fields) -> DecodedMessage:
        connection = self.connect(address)
        try:
            connection.send(api, version, encode_request(api, version, fields), SECONDS_MAX)
            return connection.receive_message(api, version, SECONDS_MAX)
        except ClientError:
            self._connections.pop(address, connection).close()
            raise


class PositionClient(Client):
    """Commits positions of groups and reads them back, each time by one request to the group's coordinator."""

    def step(self) -> None:
        name = self.some_key()
        try:
            address = self._coordinator(f"group-{name}")
            if address is not None:
                self.connect(address)
        except ClientError:
            address = None
        if address is None:
            self.pause()
        elif self.random.random() < 0.5:
            self._commit(address, name, self.random.getrandbits(40))
        else:
            self._read(address, name)

    def _coordinator(self, group: str) -> tuple[str, int] | None:
        wanted = {"key_type": GROUP_KEY, "coordinator_keys": [group]}
        (found,) = self.ask(self.some_address(), ApiKey.FIND_COORDINATOR, FIND_COORDINATOR, wanted).coordinators
        return (found.host, found.port) if found.error_code == ErrorCode.NONE else None

    def _commit(self, address: tuple[str, int], name: str, offset: int) -> None:
        position = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        fields = {
            "group_id": f"group-{name}",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": POSITIONS_TOPIC, "partitions": [position]}],
        }
        operation = self.history.begin(f"offset:{name}", "write")
        try:
            answer = self.ask(address, ApiKey.OFFSET_COMMIT, OFFSET_COMMIT, fields)
        except ClientError:
            operation.lost(offset)
            self.pause()
            return
        code = answer.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            operation.answered(value=offset)
        elif code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            operation.lost(offset)
        if code != ErrorCode.NONE:
            self.pause()

    def _read(self, address: tuple[str, int], name: str) -> None:
        group = {"group_id": f"group-{name}", "topics": [{"name": POSITIONS_TOPIC, "partition_indexes": [0]}]}
        operation = self.history.begin(f"offset:{name}", "read")
        try:
            answer = self.ask(address, ApiKey.OFFSET_FETCH, OFFSET_FETCH, {"groups": [group], "require_stable": True})
        except ClientError:
            return
        (found,) = answer.groups
        if found.error_code == ErrorCode.NONE and found.topics[0].partitions[0].error_code == ErrorCode.NONE:
            operation.answered(value=found.topics[0].partitions[0].committed_offset)
        else:
            self.pause()


class TopicClient(Client):
    """Creates and deletes the same few topics as others do at the same time, at any broker."""

    def step(self) -> None:
        name, is_created = self.some_key(), self.random.random() < 0.5
        address = self.some_address()
        try:
            self.connect(address)
        except ClientError:
            self.pause()
            return
        operation = self.history.begin(f"topic:{name}", "create" if is_created else "delete")
        try:
            code = self._ask_to_create(address, f"topic-{name}") if is_created else self._ask_to_delete(address, f"topic-{name}")
        except ClientError:
            operation.lost()
            self.pause()
            return
        if code == ErrorCode.NONE:
            operation.answered()
        elif code == (ErrorCode.TOPIC_ALREADY_EXISTS if is_created else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            operation.answered(NOTHING_TO_DO)
        else:
            operation.lost()
            self.pause()

    def _ask_to_create(self, address: tuple[str, int], name: str) -> ErrorCode:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        fields = {"topics": [topic], "timeout_ms": int(SECONDS_MAX * 1000 / 2), "validate_only": False}
        return ErrorCode(self.ask(address, ApiKey.CREATE_TOPICS, CREATE_TOPICS, fields).topics[0].error_code)

    def _ask_to_delete(self, address: tuple[str, int], name: str) -> ErrorCode:
        fields = {"topic_names": [name], "timeout_ms": int(SECONDS_MAX * 1000 / 2)}
        return ErrorCode(self.ask(address, ApiKey.DELETE_TOPICS, DELETE_TOPICS, fields).responses[0].error_code)


class TransactionClient(Client):
    """librdkafka's transactions of one message to each partition, all with the number of the transaction; some are aborted."""

    def __init__(self, name: str, bootstrap_servers: str, history: History, seed: int, numbers: Sequence[int]) -> None:
        super().__init__(name, bootstrap_servers, history, seed)
        self._servers = bootstrap_servers
        self._numbers = iter(numbers)
        self._producer: Producer | None = None

    def end_what_is_open(self) -> None:
        """A new producer with the same id ends the last transaction of its predecessor."""
        self._producer = None
        self._initialised()

    def _initialised(self) -> Producer:
        producer = Producer({**COMMON, "bootstrap.servers": self._servers, "transactional.id": self.name})
        producer.init_transactions(60)
        return producer

    def step(self) -> None:
        try:
            if self._producer is None:
                self._producer = self._initialised()
            self._transact(self._producer, next(self._numbers))
        except KafkaException:
            # Another producer with the same transactional id ends what this one left open, one way or the other. It is needed
            # when librdkafka asks to abort what the coordinator has not heard of yet, which is fatal to it on any broker (its
            # issue 4849).
            self._producer = None
            self.pause()

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(LEDGER_PARTITIONS):
            producer.produce(LEDGER_TOPIC, b"%d" % number, partition=partition)
        if self.random.random() < 0.25:
            self._abort(producer, number)
            return
        operation = self.history.begin(f"transaction:{number}", "commit")
        try:
            producer.commit_transaction(60)
        except KafkaException as error:
            operation.lost()
            if not error.args[0].txn_requires_abort():
                raise
            self._abort(producer, number)
        else:
            operation.answered()

    def _abort(self, producer: Producer, number: int) -> None:
        operation = self.history.begin(f"transaction:{number}", "abort")
        try:
            producer.abort_transaction(60)
        except KafkaException:
            operation.lost()
            raise
        operation.answered()


class Reader(Client):
    """Reads what is committed, and notes each number at its first sight in each partition."""

    def __init__(self, name: str, bootstrap_servers: str, history: History, seed: int) -> None:
        super().__init__(name, bootstrap_servers, history, seed)
        self.seen: list[list[int]] = [[] for _ in range(LEDGER_PARTITIONS)]
        self._ended: set[int | None] = set()
        self._consumer = Consumer(
            {
                **COMMON,
                "bootstrap.servers": bootstrap_servers,
                "group.id": name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(LEDGER_TOPIC, partition, 0) for partition in range(LEDGER_PARTITIONS)])

    def step(self) -> None:
        message = self._consumer.poll(0.1)
        if message is None:
            return
        if message.error() is not None:
            if not message.error().retriable():
                self.history.problem(f"{self.name}: {message.error()}")
            return
        number = int(message.value() or b"")
        if number == THE_END:
            self._ended.add(message.partition())
            return
        operation = self.history.begin(f"transaction:{number}", "seen")
        operation.answered()
        self.seen[message.partition() or 0].append(number)

    def is_at_the_end(self) -> bool:
        return len(self._ended) == LEDGER_PARTITIONS

    def close(self) -> None:
        self._consumer.close()
