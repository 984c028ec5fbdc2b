"""A simulated cluster: three nodes, each a controller and a broker, that run all of the production code on one network.

An operator at each broker creates and deletes topics, whoever the active controller is. Nodes are killed, paused, cut off and
lose their power; messages are late and connections break. In the end everything heals. Then every node has the same image, and it
holds what was acknowledged: each topic that was created and not deleted is there with the id that its answer named, and none that
was deleted. A request that got no answer may or may not have been carried out, but never twice: a name has one id at a time.
"""

from collections.abc import Callable, Mapping
from typing import Any

from simulation.checker import Violation, noticed_problems
from simulation.client import ClientConnection, Environment
from simulation.cluster_nemesis import ClusterNemesis
from simulation.disk import Crashed
from simulation.history import History
from simulation.network import SimulatedNetwork
from simulation.node import SimulatedBroker
from simulation.randomness import SimulatedRandomness
from simulation.scheduler import EVENTS_MAX, Scheduler
from simulation.stage import PHASE_US_MAX, NoProgress
from tidelog.log.durability.checkpoints import format_id
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

NODE_COUNT = 3
DECISIONS_MIN = 20
FAULTS_MIN = 4
FAULTS_US_MAX = 40_000_000
PAUSE_US = (20_000, 250_000)
RETRY_US = (20_000, 120_000)
REQUEST_MS = 5_000
INTERNAL_PORT, CONTROLLER_PORT = 9093, 9094
# What says that the request may have been carried out, and what says that it was not.
UNKNOWN = frozenset((ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR))


def host_of(node_id: int) -> str:
    return f"node{node_id}"


def settings_of(node_id: int) -> dict[str, str]:
    host = host_of(node_id)
    voters = ",".join(f"{other}@{host_of(other)}:{CONTROLLER_PORT}" for other in range(1, NODE_COUNT + 1))
    return {
        "node.id": str(node_id),
        "listeners": f"PLAINTEXT://{host}:9092,INTERNAL://{host}:{INTERNAL_PORT},CONTROLLER://{host}:{CONTROLLER_PORT}",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": voters,
        "num.partitions": "2",
        "auto.create.topics.enable": "false",
    }


class TopicFate:
    """What the operator of a name knows of it. An id that was acknowledged stays, until a deletion was sent."""

    __slots__ = ("is_certain", "topic_id")

    def __init__(self) -> None:
        self.topic_id: bytes | None = None
        self.is_certain = True


class ClusterOperator:
    """Creates and deletes its own topics through one broker, one request at a time."""

    def __init__(self, world: "ClusterWorld", node_id: int) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._randomness = world.randomness.fork(f"operator {node_id}")
        self.host = f"operator{node_id}"
        self.names = [f"topic-{node_id}-{number}" for number in range(3)]
        self.fates = {name: TopicFate() for name in self.names}
        self._connection = ClientConnection(
            self.host, world.environment, self._randomness.fork("connection"), self, host_of(node_id)
        )
        self.is_busy = False
        """Whether a request has no answer yet."""
        self.is_stopped = False

    def start(self) -> None:
        self._connection.connect()

    def ready(self) -> None:
        self._next()

    def lost(self) -> None:
        """``ready`` goes on."""

    def stop(self) -> None:
        self.is_stopped = True

    def _next(self) -> None:
        if self.is_stopped or self.is_busy or not self._connection.is_ready or self._connection.in_flight:
            return
        self.is_busy = True
        name = self.names[self._randomness.integer(0, len(self.names) - 1)]
        fate = self.fates[name]
        if fate.topic_id is not None or not fate.is_certain:
            self._delete(name, fate)
        else:
            self._create(name, fate)

    def _create(self, name: str, fate: TopicFate) -> None:
        def answered(response: DecodedMessage) -> None:
            (result,) = response.topics
            if result.error_code == ErrorCode.NONE:
                fate.topic_id, fate.is_certain = result.topic_id, True
                self._world.acknowledged()
            elif result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and fate.is_certain:
                self._world.history.problem("created twice", f"{name} exists, though nobody but {self.host} creates it")
            else:
                self._judge(fate, result.error_code, f"CreateTopics {name}: {result.error_message}")

        topic = {"name": name, "num_partitions": 2, "replication_factor": 1}
        self._call(fate, ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": REQUEST_MS}, answered)

    def _delete(self, name: str, fate: TopicFate) -> None:
        was_certain = fate.is_certain

        def answered(response: DecodedMessage) -> None:
            (result,) = response.responses
            if result.error_code == ErrorCode.NONE:
                if was_certain and result.topic_id != fate.topic_id:
                    self._world.history.problem("another topic", f"{name} had another id when it was deleted")
                fate.topic_id, fate.is_certain = None, True
                self._world.acknowledged()
            elif result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if was_certain:
                    self._world.history.problem("lost", f"{name} was acknowledged, and is not there when it is to be deleted")
                fate.topic_id, fate.is_certain = None, True
            else:
                self._judge(fate, result.error_code, f"DeleteTopics {name}: {result.error_message}")

        topics = [{"name": name, "topic_id": bytes(16)}]
        self._call(fate, ApiKey.DELETE_TOPICS, 6, {"topics": topics, "timeout_ms": REQUEST_MS}, answered)

    def _judge(self, fate: TopicFate, code: int, text: str) -> None:
        if code in UNKNOWN:
            fate.is_certain = False
        elif code != ErrorCode.NOT_CONTROLLER and code != ErrorCode.INVALID_REPLICATION_FACTOR:
            self._world.history.problem("unexpected error", f"{self.host}: {text} ({ErrorCode(code).name})")

    def _call(
        self, fate: TopicFate, api_key: ApiKey, version: int, fields: dict[str, Any], answered: Callable[[DecodedMessage], None]
    ) -> None:
        def replied(frame: memoryview | None, position: int) -> None:
            self.is_busy = False
            if frame is None:
                fate.is_certain = False
            else:
                answered(decode_response(api_key, version, frame, position))
                delay_us = self._randomness.integer(*PAUSE_US)
                self._scheduler.schedule(delay_us, f"{self.host} goes on", self._next)

        self._connection.request(api_key, version, encode_request(api_key, version, fields), replied)


class ClusterWorld:
    settings: Mapping[str, str] = {}
    unchecked: Mapping[str, int] = {}
    """What a world of this kind adds to the settings of every node; values too small for real life are unchecked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.randomness = SimulatedRandomness(seed)
        self.scheduler = Scheduler()
        self.history = History()
        self.network = SimulatedNetwork(self.scheduler, self.randomness.fork("network"))
        self.environment = Environment(self.scheduler, self.network, self.history)
        self.nodes = {
            node_id: SimulatedBroker(
                self.scheduler,
                self.network,
                self.randomness.fork(host_of(node_id)),
                {**settings_of(node_id), **self.settings},
                self.unchecked,
                self._reporter(node_id),
                host_of(node_id),
            )
            for node_id in range(1, NODE_COUNT + 1)
        }
        self.operators = [ClusterOperator(self, node_id) for node_id in self.nodes]
        self.nemesis = ClusterNemesis(self, self.randomness.fork("nemesis"))
        self.operations = 0

    @property
    def fault_count(self) -> int:
        return sum(self.nemesis.counts.values())

    @property
    def client_hosts(self) -> list[str]:
        return [operator.host for operator in self.operators]

    @property
    def events(self) -> dict[str, int]:
        """What happened in the cluster, beside faults, that a batch of seeds must show."""
        return {}

    def acknowledged(self) -> None:
        self.operations += 1

    def _reporter(self, node_id: int) -> Callable[[str, dict[str, object]], None]:
        def report(event: str, facts: dict[str, object]) -> None:
            self.scheduler.record(f"node {node_id} reports {event} {facts}")
            if event in ("unexpected_error", "start_failed", "controller_not_activated"):
                self.history.problem(event, f"node {node_id}: {facts}")
            self.reported(node_id, event, facts)

        return report

    def reported(self, node_id: int, event: str, facts: dict[str, object]) -> None:
        """A world of this kind may want to know."""

    # -- phases --------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.run_until("the cluster is there", lambda: self.is_whole)
        for operator in self.operators:
            operator.start()
        self.nemesis.start()
        self.run_until(
            "enough happened",
            lambda: self.operations >= DECISIONS_MIN and self.fault_count >= FAULTS_MIN,
            FAULTS_US_MAX,
        )
        for operator in self.operators:
            operator.stop()
        self.nemesis.heal()
        self.run_until("all requests are answered", lambda: not any(operator.is_busy for operator in self.operators))
        self.run_until("all images are equal", lambda: self.is_whole and self._are_equal)

    @property
    def is_whole(self) -> bool:
        """Whether every node serves, and knows that all others do."""
        return all(
            node.is_serving
            and node.broker is not None
            and sum(each.is_active for each in node.broker.image.brokers) == NODE_COUNT
            for node in self.nodes.values()
        )

    @property
    def _are_equal(self) -> bool:
        brokers = [node.broker for node in self.nodes.values() if node.broker is not None]
        return len({broker.image.last_offset for broker in brokers}) == 1

    def run_until(self, phase: str, condition: Callable[[], bool], duration_us_max: int = PHASE_US_MAX) -> None:
        scheduler = self.scheduler
        scheduler.record(f"until {phase}")
        deadline_us = scheduler.now_us + duration_us_max
        for _ in range(EVENTS_MAX):
            if condition():
                return
            if scheduler.now_us > deadline_us:
                raise NoProgress(f"not within {duration_us_max / 1_000_000:g} s: {phase}")
            try:
                if not scheduler.step():
                    raise NoProgress(f"nothing is left to happen, and not yet: {phase}")
            except Crashed as error:
                raise NoProgress("no disk operation was to crash") from error
        raise NoProgress(f"not within {EVENTS_MAX} events: {phase}")

    # -- what must hold ------------------------------------------------------------------------------------------------------

    def check(self) -> list[Violation]:
        violations = list(noticed_problems(self.history))
        images = [_describe(node) for node in self.nodes.values()]
        if any(image != images[0] for image in images):
            violations.append(Violation("images differ", f"{images}"))
        topics = images[0]["topics"]
        for operator in self.operators:
            for name, fate in operator.fates.items():
                found = topics.get(name)
                if fate.is_certain and found != (format_id(fate.topic_id) if fate.topic_id is not None else None):
                    violations.append(Violation("not as acknowledged", f"{name} is {found}, acknowledged was {fate.topic_id!r}"))
        return violations


def _describe(node: SimulatedBroker) -> dict[str, Any]:
    broker = node.broker
    assert broker is not None
    image = broker.image
    return {
        "offset": image.last_offset,
        "brokers": sorted((each.broker_id, each.broker_epoch, each.fenced) for each in image.brokers),
        "topics": {topic.name: format_id(topic.topic_id) for topic in image.topics},
        "partitions": sorted(
            (topic.name, index, partition.leader, partition.leader_epoch, partition.isr)
            for topic in image.topics
            for index, partition in topic.partitions.items()
        ),
    }
