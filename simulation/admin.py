"""A simulated administrator, which creates and deletes topics and changes their settings. It makes one call at a time, until each
is answered.

A call whose connection is lost is repeated, so its answer may be that of the second attempt: a topic that exists already is then
looked up, and one that is gone already counts as deleted.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from simulation.client import ClientConnection, Environment
from simulation.history import NEVER, TopicLife
from simulation.randomness import SimulatedRandomness
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, decode_response, encode_request
from tidelog.wire.protocol import ApiKey

RETRY_US = (20_000, 80_000)
TOPIC_RESOURCE = 2
SET = 0
# The metadata log cannot be written, or not in time: somebody must repair the disk or restart the broker.
_TRY_AGAIN = {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}

# A function that returns what to send, and one that handles the answer and returns True when the call has ended.
Call = tuple[ApiKey, int, Callable[[], dict[str, Any]], Callable[[DecodedMessage], bool]]


class Admin:
    def __init__(self, environment: Environment, randomness: SimulatedRandomness) -> None:
        self._scheduler = environment.scheduler
        self._history = environment.history
        self._randomness = randomness
        self._connection = ClientConnection("admin", environment, randomness.fork("connection"), self)
        self._calls: deque[Call] = deque()

    def start(self) -> None:
        self._connection.connect()
        self._connection.watch()

    def close(self) -> None:
        self._connection.close()

    @property
    def is_idle(self) -> bool:
        return not self._calls

    def ready(self) -> None:
        self._go_on()

    def lost(self) -> None:
        pass  # ``ready`` makes the call again.

    # -- calls ---------------------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        on_created: Callable[[TopicLife], None],
        has_retention: bool = False,
    ) -> None:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }

        def created(topic_id: bytes) -> None:
            on_created(self._history.created(name, topic_id, partitions, has_retention))

        def answered(response: DecodedMessage) -> bool:
            (result,) = response.topics
            if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
                self._calls.insert(1, self._look_up(name, created))
                return True
            if result.error_code == ErrorCode.NONE:
                created(result.topic_id)
                return True
            return self._refused(f"CreateTopics {name}", result.error_code, result.error_message)

        self._add((ApiKey.CREATE_TOPICS, 7, lambda: {"topics": [topic], "timeout_ms": 5_000}, answered))

    def _look_up(self, name: str, on_found: Callable[[bytes], None]) -> Call:
        def answered(response: DecodedMessage) -> bool:
            (result,) = response.topics
            if result.error_code == ErrorCode.NONE:
                on_found(result.topic_id)
                return True
            return self._refused(f"Metadata of {name}", result.error_code, None)

        return (
            ApiKey.METADATA,
            12,
            lambda: {"topics": [{"topic_id": bytes(16), "name": name}], "allow_auto_topic_creation": False},
            answered,
        )

    def delete(self, life: TopicLife, on_deleted: Callable[[], None]) -> None:
        def fields() -> dict[str, Any]:
            if life.deletion_sent_at == NEVER:
                life.deletion_sent_at = self._history.now()
            return {"topics": [{"topic_id": life.topic_id, "name": None}], "timeout_ms": 5_000}

        def answered(response: DecodedMessage) -> bool:
            (result,) = response.responses
            if result.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                life.deleted_at = self._history.now()
                on_deleted()
                return True
            return self._refused(f"DeleteTopics {life.name}", result.error_code, result.error_message)

        self._add((ApiKey.DELETE_TOPICS, 6, fields, answered))

    def alter(self, name: str, configs: Mapping[str, str], on_altered: Callable[[], None] = lambda: None) -> None:
        settings = [{"name": key, "config_operation": SET, "value": value} for key, value in configs.items()]
        resource = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": settings}

        def answered(response: DecodedMessage) -> bool:
            (result,) = response.responses
            if result.error_code == ErrorCode.NONE:
                on_altered()
                return True
            return self._refused(f"IncrementalAlterConfigs {name}", result.error_code, result.error_message)

        self._add((ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, lambda: {"resources": [resource], "validate_only": False}, answered))

    # -- one at a time -------------------------------------------------------------------------------------------------------

    def _add(self, call: Call) -> None:
        self._calls.append(call)
        if len(self._calls) == 1:
            self._go_on()

    def _go_on(self) -> None:
        if not self._calls or not self._connection.is_ready or self._connection.in_flight:
            return
        api_key, version, fields, answered = self._calls[0]

        def replied(frame: memoryview | None, position: int) -> None:
            if frame is None:
                return
            if answered(decode_response(api_key, version, frame, position)):
                self._calls.popleft()
                self._go_on()
            else:
                self._scheduler.schedule(self._randomness.integer(*RETRY_US), "admin tries again", self._go_on)

        self._connection.request(api_key, version, encode_request(api_key, version, fields()), replied)

    def _refused(self, call: str, code: int, message: str | None) -> bool:
        """Whether to abandon the call."""
        if code in _TRY_AGAIN:
            return False
        self._history.problem("unexpected error", f"admin: {call}: {ErrorCode(code)!r} {message}")
        return True
