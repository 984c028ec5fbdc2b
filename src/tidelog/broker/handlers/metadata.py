"""Metadata: returns the brokers, and the topics that a client asks for with the leaders of their partitions.

A topic that does not exist is created if the broker and the client allow it, and the answer waits until it exists. Kafka answers
LEADER_NOT_AVAILABLE and lets the client retry, but some clients give up at that. A request that names more topics than one
request may create creates none.

A leader whose connection to this broker has just ended is most likely gone, although nobody has decided so yet. For a moment its
partitions have no leader in the answers: clients then ask again soon. Told of the old leader again, librdkafka waits for a
second; and an answer with the new leader but without the old one, which is fenced by then, costs it another one, because it ends
the thread that still has the partition.

``MetadataCache`` keeps the encoded responses to common questions.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from tidelog.broker.api import Api, Pace, RequestContext, free_in_slices
from tidelog.broker.error_mapping import error_code_of
from tidelog.broker.response_fields import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED_FOR,
    TOPIC_OPERATIONS,
    broker_addresses,
    named_controller,
    partition_fields,
)
from tidelog.controller.errors import ApiError
from tidelog.controller.topics import PARTITIONS_PER_REQUEST_MAX
from tidelog.log.names import topic_name_problem
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.topics import INTERNAL_TOPICS, METADATA_TOPIC, TopicImage
from tidelog.ports.disk import Buffer
from tidelog.ports.steps import Steps
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage, encode_response_in_slices
from tidelog.wire.primitives import ELEMENTS_MAX, INT32, ZERO_UUID
from tidelog.wire.protocol import ApiKey

# Before this version the request has a field for a topic's id but ignores it.
TOPIC_IDS_SINCE = 12
THROTTLE_TIME_SINCE = 3
# Longer than any commit should take, shorter than clients wait for an answer.
AUTO_CREATE_MS_MAX = 5_000
# Newer versions have the error THROTTLING_QUOTA_EXCEEDED, with which this broker answers for the topics that it refused.
AUTO_CREATE = ApiKey.CREATE_TOPICS, 7

Errors = Mapping[str, ErrorCode]
_NO_ERRORS: Errors = {}


def handle(context: RequestContext, request: DecodedMessage) -> Steps[None] | None:
    topics = request.topics
    if not topics and context.header.api_version == 0:
        topics = None  # Version 0 has no null, so an empty list means all topics.
    question = _question(context, request, topics)
    body = context.broker.metadata_cache.find(question) if question is not None else None
    if body is not None:
        _reply_body(context, body)
        return None
    return _answer(context, request, topics, question)


def _answer(
    context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None, question: Hashable
) -> Steps[None]:
    version = context.header.api_version
    if topics:
        topics = yield from _named_once(topics, version)
        if len(topics) <= PARTITIONS_PER_REQUEST_MAX:
            missing = _to_be_created(context, request, topics)
            if missing:
                _create(context, request, topics, missing)
                return
    image_version = context.broker.image.version
    fields = yield from _response(context, request, topics, _NO_ERRORS)
    if question is None or _has_error(fields):
        yield from context.reply_in_slices(fields)
        yield from free_in_slices(fields)
        yield from free_in_slices(request)
        return
    body = yield from encode_response_in_slices(ApiKey.METADATA, version, fields)
    if context.broker.image.version == image_version:
        context.broker.metadata_cache.keep(question, bytes(body))
    _reply_body(context, body)


def _named_once(topics: Sequence[DecodedMessage], version: int) -> Steps[list[DecodedMessage]]:
    """Describe each topic once, as in Kafka: repeating a large topic costs a client a few bytes but would cost the broker a whole
    answer."""
    pace = Pace()
    named = {}
    for topic in topics:
        if version < TOPIC_IDS_SINCE and (topic.name is None or topic.topic_id != ZERO_UUID):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"version {version} asks for topics by name, not by id")
        named[topic.name, topic.topic_id] = topic
        if pace.is_pause_due():
            yield
    return list(named.values())


def _reply_body(context: RequestContext, body: Buffer) -> None:
    """Answer with a cached body. Its first field says that the client is not throttled, so set the real throttle time."""
    throttle_time_ms = context.broker.throttling.answer(context) if context.usage is not None else 0
    if throttle_time_ms and context.header.api_version >= THROTTLE_TIME_SINCE:
        body = INT32.pack(throttle_time_ms) + bytes(body[INT32.size :])
    context.reply_parts([body])


def _question(context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None) -> Any:
    """The cache key of a common question; None for any other."""
    if topics is not None and len(topics) != 1:
        return None
    wanted = None if topics is None else tuple((topic.name, topic.topic_id) for topic in topics)
    broker = context.broker
    asked_on = context.session.listener.name, context.header.api_version, broker.quorum.leader_id, broker.replicas.lost_leaders()
    return asked_on, wanted, _asks_for_topic_operations(request), _asks_for_cluster_operations(request)


def _asks_for_topic_operations(request: DecodedMessage) -> bool:
    return bool(request.include_topic_authorized_operations)


def _asks_for_cluster_operations(request: DecodedMessage) -> bool:
    return bool(request.include_cluster_authorized_operations)


# -- creating ----------------------------------------------------------------------------------------------------------------


def _to_be_created(context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None) -> list[str]:
    broker = context.broker
    if not topics or not request.allow_auto_topic_creation or not broker.config.values["auto.create.topics.enable"]:
        return []
    names = dict.fromkeys(topic.name for topic in topics if topic.name is not None and topic.topic_id == ZERO_UUID)
    return [
        name for name in names if broker.image.topic(name) is None and not _is_reserved(name) and topic_name_problem(name) is None
    ]


def _is_reserved(name: str) -> bool:
    """Whether the brokers create the topic themselves when they need it."""
    return name in INTERNAL_TOPICS or name == METADATA_TOPIC


def _create(
    context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None, missing: list[str]
) -> None:
    """Ask the active controller in the client's name, so a client that creates topics by asking for them is throttled too. The
    answer waits until this node's image has what was created."""
    broker = context.broker
    topic = {"num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    fields = {
        "topics": [{"name": name, **topic} for name in missing],
        "timeout_ms": AUTO_CREATE_MS_MAX,
        "validate_only": False,
    }

    def answer(errors: Errors) -> None:
        shown = {name: code for name, code in errors.items() if broker.image.topic(name) is None}
        context.continue_in_slices(_reply_created(context, request, topics, shown))

    def replied(response: DecodedMessage) -> None:
        codes = {result.name: ErrorCode(result.error_code) for result in response.topics}
        # TOPIC_ALREADY_EXISTS: another client was faster, and the topic is there.
        awaited = [name for name, code in codes.items() if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)]
        # Every client retries after this code.
        retriable = dict.fromkeys((*awaited, *_timed_out(codes)), ErrorCode.LEADER_NOT_AVAILABLE)
        image = broker.image
        broker.image_waiters.wait(
            lambda: all(image.topic(name) is not None for name in awaited),
            lambda: answer({**codes, **retriable}),
            AUTO_CREATE_MS_MAX,
        )

    def failed(error: Exception) -> None:
        code, _ = error_code_of(error)
        answer(dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE if code is ErrorCode.REQUEST_TIMED_OUT else code))

    client = context.header.client_id or "", context.session.client_host
    broker.forwarding.request(AUTO_CREATE, fields, replied, failed, AUTO_CREATE_MS_MAX, client)


def _reply_created(
    context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None, errors: Errors
) -> Steps[None]:
    fields = yield from _response(context, request, topics, errors)
    yield from context.reply_in_slices(fields)


def _timed_out(codes: Mapping[str, ErrorCode]) -> list[str]:
    return [name for name, code in codes.items() if code is ErrorCode.REQUEST_TIMED_OUT]


# -- answering ---------------------------------------------------------------------------------------------------------------


def _response(
    context: RequestContext, request: DecodedMessage, topics: Sequence[DecodedMessage] | None, errors: Errors
) -> Steps[dict[str, Any]]:
    broker = context.broker
    image = broker.image
    operations = TOPIC_OPERATIONS if _asks_for_topic_operations(request) else OPERATIONS_NOT_ASKED_FOR
    pace = Pace()
    view = _View(image, operations, broker.replicas.lost_leaders(), pace)
    shown = []
    for topic in list(image.topics) if topics is None else topics:
        if isinstance(topic, TopicImage):
            shown.append((yield from _topic_fields(view, topic)))
        else:
            shown.append((yield from _find(view, topic, errors)))
        if pace.is_pause_due():
            yield
    return {
        "brokers": [
            {"node_id": known.broker_id, **address} for known, address in broker_addresses(image, context.session.listener.name)
        ],
        "cluster_id": broker.config.cluster_id,
        "controller_id": named_controller(broker.image, context.session.listener.name, broker.quorum.leader_id),
        "topics": shown,
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if _asks_for_cluster_operations(request) else OPERATIONS_NOT_ASKED_FOR
        ),
    }


class _View(NamedTuple):
    """The topics as one request sees them."""

    image: ClusterImage
    operations: int
    lost_leaders: tuple[int, ...]
    pace: Pace


def _find(view: _View, wanted: DecodedMessage, errors: Errors) -> Steps[dict[str, Any]]:
    name, image = wanted.name, view.image
    if wanted.topic_id != ZERO_UUID:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is None:
            return {"error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": None, "topic_id": wanted.topic_id}
        return (yield from _topic_fields(view, topic))
    topic = image.topic(name) if name is not None else None
    if topic is not None:
        return (yield from _topic_fields(view, topic))
    if name is None or topic_name_problem(name) is not None:
        return {"error_code": ErrorCode.INVALID_TOPIC_EXCEPTION, "name": name}
    code = errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return {"error_code": code, "name": name, "is_internal": _is_reserved(name)}


def _topic_fields(view: _View, topic: TopicImage) -> Steps[dict[str, Any]]:
    partitions = []
    for index, partition in sorted(topic.partitions.items()):
        partitions.append(partition_fields(view.image, index, partition, view.lost_leaders))
        if view.pace.is_pause_due():
            yield
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": partitions,
        "topic_authorized_operations": view.operations,
    }


def _has_error(fields: Mapping[str, Any]) -> bool:
    return any(topic["error_code"] != ErrorCode.NONE for topic in fields["topics"])


def _failure(request: DecodedMessage, code: ErrorCode, message: str) -> dict[str, Any]:  # noqa: ARG001 - the response has no place for words
    """``name`` may be null only in versions that have ids."""
    topics = request.topics or ()
    return {"topics": [{"error_code": code, "name": topic.name or "", "topic_id": topic.topic_id} for topic in topics]}


API = Api(key=ApiKey.METADATA, name="Metadata", versions=(0, 13), handle=handle, failure=_failure, elements_max=ELEMENTS_MAX)


ENTRIES_MAX = 1024
BYTES_MAX = 16 << 20


class MetadataCache:
    """Encoded Metadata responses, cached until the image changes.

    Most clients ask for one topic or for all, again and again, and get the same bytes. A few distinct questions make up the load;
    a client that asks thousands of different ones only empties the cache."""

    __slots__ = ("_bodies", "_bytes", "_image", "_version")

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._version = image.version
        self._bodies: dict[Hashable, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    def find(self, question: Hashable) -> bytes | None:
        if self._version != self._image.version:
            self._clear()
        return self._bodies.get(question)

    def keep(self, question: Hashable, body: bytes) -> None:
        """Cache an answer that was made from the current image."""
        if len(self._bodies) >= ENTRIES_MAX or self._bytes + len(body) > BYTES_MAX:
            self._clear()
        if len(body) <= BYTES_MAX:
            self._bodies[question] = body
            self._bytes += len(body)

    def _clear(self) -> None:
        self._version = self._image.version
        self._bodies = {}
        self._bytes = 0
