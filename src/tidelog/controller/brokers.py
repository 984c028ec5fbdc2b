"""Registers brokers and controllers, fences and unfences them, and lets them shut down (KIP-631).

Every decision is a function of the image and an event. A broker's life:

    registered (fenced) --caught up--> active --wants to stop--> in controlled shutdown --nothing left to lead--> fenced, may stop
         ^                               |
         |                               | its session ended, or its process is known to be gone
         +--------- fenced <-------------+

A registration is fenced at first: the broker is told the offset of its record, which is its *epoch*, and leads nothing until its
heartbeats say that its image has reached that offset. An epoch belongs to one process. The process is known by its incarnation
id, so a repeated registration of the same process changes nothing, and one of another process is refused while the first one
lives. Heartbeats write no records unless they change who is fenced.

The last active broker that stops is not fenced: nobody is left who would lead or be told, and a record for each partition would
make the metadata log of a lone broker grow with every stop.
"""

from dataclasses import dataclass

from tidelog.controller.decision_queue import ControllerResult
from tidelog.controller.election import DataCondition, TopicElectionRules, broker_left, broker_registered, broker_returned
from tidelog.controller.errors import ApiError
from tidelog.metadata.brokers import BrokerImage
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    Ids,
    MetadataRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    SupportedFeature,
    UnregisterBrokerRecord,
)
from tidelog.wire.errors import ErrorCode

FENCE, UNFENCE = 1, -1
SHUTTING_DOWN = 1
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    end_points: tuple[BrokerEndpoint, ...]
    features: tuple[SupportedFeature, ...]
    rack: str | None
    log_dirs: Ids
    previous_broker_epoch: int = NO_EPOCH
    """The epoch of the last process if that stopped in order, ``epoch_of_crashed`` of it if it crashed, -1 if it is not known."""


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


def register_broker(
    image: ClusterImage,
    rules: TopicElectionRules,
    wanted: BrokerRegistration,
    *,
    cluster_id: str,
    has_session: bool,
    next_offset: int,
) -> ControllerResult[int]:
    """The response is the broker's epoch. ``has_session`` says whether the broker that has the id now is alive, and
    ``next_offset`` where the record will stand."""
    if wanted.cluster_id != cluster_id:
        message = f"broker {wanted.broker_id} belongs to cluster {wanted.cluster_id}, but this is cluster {cluster_id}"
        raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    known = image.brokers.find(wanted.broker_id)
    if known is not None and known.incarnation_id == wanted.incarnation_id:
        return ControllerResult([], known.broker_epoch)
    if known is not None and has_session:
        message = f"another process is registered as broker {wanted.broker_id} and is alive; give each broker its own node.id"
        raise ApiError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
    _check_features(image, wanted.features)
    _check_directories(image, wanted)
    register = RegisterBrokerRecord(
        broker_id=wanted.broker_id,
        incarnation_id=wanted.incarnation_id,
        broker_epoch=next_offset,
        end_points=wanted.end_points,
        features=wanted.features,
        rack=wanted.rack,
        fenced=True,
        log_dirs=wanted.log_dirs,
    )
    changed = broker_registered(image, rules, wanted.broker_id, wanted.log_dirs, _condition(known, wanted))
    return ControllerResult([register, *changed.records], next_offset)


def _condition(known: BrokerImage | None, wanted: BrokerRegistration) -> DataCondition:
    if known is None or wanted.previous_broker_epoch == known.broker_epoch:
        return DataCondition.STOPPED_IN_ORDER
    was_last = wanted.previous_broker_epoch in (NO_EPOCH, epoch_of_crashed(known.broker_epoch))
    return DataCondition.CRASHED if was_last else DataCondition.OLDER_COPY


def epoch_of_crashed(broker_epoch: int) -> int:
    """The previous epoch in the registration of a broker whose last process crashed. Kafka sends -1 then; with the epoch the
    controller also recognizes the restored copy of a directory that was copied while a broker ran on it."""
    return -2 - broker_epoch


def _check_features(image: ClusterImage, supported: tuple[SupportedFeature, ...]) -> None:
    ranges = {feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in supported}
    for name, level in image.features.items():
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            message = f"the cluster runs {name} at level {level}, and the broker supports {low} to {high}"
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, message)


def _check_directories(image: ClusterImage, wanted: BrokerRegistration) -> None:
    for other in image.brokers:
        shared = set(other.log_dirs) & set(wanted.log_dirs)
        if shared and other.broker_id != wanted.broker_id:
            message = f"broker {other.broker_id} has this log directory; a directory belongs to one broker, copies included"
            raise ApiError(ErrorCode.INVALID_REGISTRATION, message)


def find_broker(image: ClusterImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """Raises ApiError unless the broker is registered with this epoch."""
    broker = image.brokers.find(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        message = f"broker {broker_id} is registered with epoch {broker.broker_epoch}, not with {broker_epoch}"
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, message)
    return broker


def changes_nothing(image: ClusterImage, heartbeat: BrokerHeartbeat) -> bool:
    """Whether the heartbeat of an active broker says only that it is alive, which is what nearly all say."""
    return image.brokers.is_active(heartbeat.broker_id) and not (heartbeat.want_fence or heartbeat.want_shut_down)


def process_heartbeat(
    image: ClusterImage, rules: TopicElectionRules, heartbeat: BrokerHeartbeat
) -> ControllerResult[HeartbeatResult]:
    broker_id = heartbeat.broker_id
    broker = find_broker(image, broker_id, heartbeat.broker_epoch)
    is_caught_up = heartbeat.current_metadata_offset >= broker.broker_epoch
    if heartbeat.want_shut_down:
        return _shut_down(image, rules, broker, is_caught_up)
    records: list[MetadataRecord] = []
    is_fenced = broker.fenced
    if broker.fenced and is_caught_up and not heartbeat.want_fence:
        is_fenced = False
        records.append(BrokerRegistrationChangeRecord(broker_id, broker.broker_epoch, fenced=UNFENCE))
        records += broker_returned(image, rules, broker_id).records
    elif not broker.fenced and heartbeat.want_fence:
        is_fenced = True
        records += fence_broker(image, rules, broker_id).records
    return ControllerResult(records, HeartbeatResult(is_caught_up, is_fenced, should_shut_down=False))


def _shut_down(
    image: ClusterImage, rules: TopicElectionRules, broker: BrokerImage, is_caught_up: bool
) -> ControllerResult[HeartbeatResult]:
    """First others take over what the broker leads; when that is committed, the next heartbeat lets it go."""
    broker_id, records = broker.broker_id, list[MetadataRecord]()
    others_are_active = any(other.is_active and other.broker_id != broker_id for other in image.brokers)
    if broker.fenced or not others_are_active:
        return ControllerResult(records, HeartbeatResult(is_caught_up, broker.fenced, should_shut_down=True))
    if not broker.in_controlled_shutdown:
        records.append(BrokerRegistrationChangeRecord(broker_id, broker.broker_epoch, in_controlled_shutdown=SHUTTING_DOWN))
        records += broker_left(image, rules, broker_id).records
        return ControllerResult(records, HeartbeatResult(is_caught_up, is_fenced=False, should_shut_down=False))
    if leads_anything(image, broker_id):
        return ControllerResult(records, HeartbeatResult(is_caught_up, is_fenced=False, should_shut_down=False))
    records += fence_broker(image, rules, broker_id).records
    return ControllerResult(records, HeartbeatResult(is_caught_up, is_fenced=True, should_shut_down=True))


def leads_anything(image: ClusterImage, broker_id: int) -> bool:
    return any(partition.leader == broker_id for topic in image.topics for partition in topic.partitions.values())


def fence_broker(image: ClusterImage, rules: TopicElectionRules, broker_id: int) -> ControllerResult[bool]:
    """The response is whether the broker was not fenced before."""
    broker = image.brokers.find(broker_id)
    if broker is None or broker.fenced:
        return ControllerResult([], False)
    fence = BrokerRegistrationChangeRecord(broker_id, broker.broker_epoch, fenced=FENCE)
    return ControllerResult([fence, *broker_left(image, rules, broker_id).records], True)


def unregister_broker(image: ClusterImage, rules: TopicElectionRules, broker_id: int) -> ControllerResult[None]:
    broker = image.brokers.find(broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id} is not registered")
    if not broker.fenced:
        # It would go on serving with nobody to lead its partitions.
        raise ApiError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} is running: stop it before you unregister it")
    held = [
        f"{topic.name}-{index}"
        for topic in image.topics
        for index, state in topic.partitions.items()
        if broker_id in state.replicas
    ]
    if held:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"broker {broker_id} still has {len(held)} replica(s), {held[0]} among them: move them to other brokers first",
        )
    left = broker_left(image, rules, broker_id)
    return ControllerResult([*left.records, UnregisterBrokerRecord(broker_id, broker.broker_epoch)], None)


def register_controller(image: ClusterImage, record: RegisterControllerRecord) -> ControllerResult[None]:
    return ControllerResult([] if image.controllers.get(record.controller_id) == record else [record], None)
