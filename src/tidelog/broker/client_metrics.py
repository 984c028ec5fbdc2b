"""Client metrics (KIP-714): which metrics clients are asked for, and the last values that they pushed.

An administrator makes subscriptions, which are settings of the resource CLIENT_METRICS. A client asks for its subscription
(GetTelemetrySubscriptions) and then pushes (PushTelemetry) at the interval that it was told. The subscription id follows from
what is asked for, so a push for an outdated subscription is recognized, also by a broker that has never heard of the client. The
rules and error codes are those of Kafka's ClientMetricsManager. Kafka passes the metrics to a plug-in; here the last values of
each client are kept and shown on /metrics. Clients are asked for cumulative values, because a last value that is a difference
says nothing.

Everything is soft state and bounded: the clients that are known, the values of each and of all together. The client that has
been silent for the longest makes room. A client is forgotten after a minute or three push intervals of silence, whichever is
longer, so that its last push, which it sends when it ends, can still be read.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from tidelog.config.client_metrics import (
    ALL_METRICS,
    CLIENT_METRICS,
    MATCH,
    METRICS,
    PUSH_INTERVAL_MS,
    PUSH_INTERVAL_MS_DEFAULT,
    Matchers,
    read_match,
)
from tidelog.config.definition import read_leniently
from tidelog.config.types import InvalidSetting
from tidelog.controller.errors import ApiError
from tidelog.metadata.configs import ResourceType
from tidelog.metadata.image import ClusterImage
from tidelog.ports.clock import Clock
from tidelog.ports.randomness import Randomness
from tidelog.records.compression import CompressionType, compression_type, decompress
from tidelog.records.errors import DecompressionLimitExceeded, RecordError, UnsupportedCompression
from tidelog.wire.errors import ErrorCode, MalformedRequest
from tidelog.wire.otlp import Attributes, decode_metrics

# In the order of our preference, as in Kafka.
ACCEPTED_COMPRESSIONS = (CompressionType.ZSTD, CompressionType.LZ4, CompressionType.GZIP, CompressionType.SNAPPY)

# An instance without values takes less than a kilobyte.
INSTANCES_MAX = 4_096
# A line of /metrics for each, some 300 bytes.
VALUES_PER_CLIENT_MAX = 200
VALUES_MAX = 2_000
SILENCE_MS_MAX = 60_000
SILENT_INTERVALS_MAX = 3
# Client ids come from outside; a longer one is cut where it is shown.
CLIENT_ID_CHARACTERS_MAX = 200

# After these, a client must ask for its subscription again, and need not wait for its interval.
_ASK_AGAIN_CODES = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
# Zero means that a client has no id yet; Kafka reserves one as well.
_RESERVED_IDS = (bytes(16), bytes(15) + b"\x01")


class ClientIdentity(NamedTuple):
    """What is known about the client of a connection."""

    client_id: str
    software_name: str
    software_version: str
    address: str


class Subscription(NamedTuple):
    """What a client is asked for. The subscription of a client that no subscription matches asks for nothing."""

    subscription_id: int
    push_interval_ms: int
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TelemetryPush:
    instance_id: bytes
    subscription_id: int
    is_terminating: bool
    compression_code: int
    metrics: bytes


class ShownValue(NamedTuple):
    client_id: str
    instance_id: str
    software: str
    metric: str
    attributes: str
    value: float


class _ClientInstance:
    __slots__ = (
        "_is_new",
        "_last_ms",
        "identity",
        "is_terminating",
        "last_error",
        "seen_ms",
        "subscription",
        "subscriptions_version",
        "values",
    )

    def __init__(self, identity: ClientIdentity, subscription: Subscription, subscriptions_version: int) -> None:
        self.identity = identity
        self.values: dict[tuple[str, Attributes], float] = {}
        self.seen_ms = 0
        self.renew(subscription, subscriptions_version)

    def renew(self, subscription: Subscription, subscriptions_version: int) -> None:
        self.subscription = subscription
        self.subscriptions_version = subscriptions_version
        self.is_terminating = False
        self.last_error = ErrorCode.NONE
        self.forget_requests()

    def forget_requests(self) -> None:
        self._last_ms: int | None = None
        # Whether no push has followed the last get.
        self._is_new = True

    def may_get(self, now_ms: int) -> bool:
        if self._is_early(now_ms) and self.last_error not in _ASK_AGAIN_CODES:
            return False
        self._last_ms = now_ms
        self._is_new = True
        return True

    def may_push(self, now_ms: int) -> bool:
        """The first push after a get may come at any time: clients wait for half to one and a half intervals before it, so that
        not all of them push at once."""
        if self._is_early(now_ms) and not self._is_new:
            return False
        self._last_ms = now_ms
        self._is_new = False
        return True

    def _is_early(self, now_ms: int) -> bool:
        return self._last_ms is not None and now_ms - self._last_ms < self.subscription.push_interval_ms

    def is_silent(self, now_ms: int) -> bool:
        silence_ms = max(SILENCE_MS_MAX, SILENT_INTERVALS_MAX * self.subscription.push_interval_ms)
        return now_ms - self.seen_ms > silence_ms


class ClientMetrics:
    def __init__(self, image: ClusterImage, clock: Clock, randomness: Randomness, telemetry_bytes_max: int) -> None:
        self._image = image
        self._clock = clock
        self._randomness = randomness
        self.telemetry_bytes_max = telemetry_bytes_max
        # The client that was seen last is the last one.
        self._instances: dict[bytes, _ClientInstance] = {}
        self._value_count = 0
        # The subscriptions as they were at a version of the image, and how often they have changed.
        self._settings: dict[str, Mapping[str, str]] = {}
        self._matchers: list[tuple[Matchers, tuple[str, ...], int]] = []
        self._image_version = -1
        self._version = 0
        self.pushes = 0
        self.values_dropped = 0
        """Values that were pushed but not kept, because there were too many."""

    @property
    def instance_count(self) -> int:
        return len(self._instances)

    def subscribe(self, instance_id: bytes, identity: ClientIdentity) -> tuple[bytes, Subscription]:
        """Return the client's id, which is new if it had none, and its subscription. Raises ApiError."""
        if instance_id == bytes(16):
            instance_id = self._new_id()
        instance = self._instance(instance_id, identity)
        if not instance.may_get(self._clock.monotonic_ms()):
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the request came before the next push was due")
        instance.last_error = ErrorCode.NONE
        return instance_id, instance.subscription

    def push(self, push: TelemetryPush, identity: ClientIdentity) -> None:
        """Keep the values of a push instead of those before. Raises ApiError."""
        if push.instance_id in _RESERVED_IDS:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client instance id is not one that a client can have")
        instance = self._instance(push.instance_id, identity)
        try:
            self._check(push, instance)
            self._take(push, instance)
            instance.last_error = ErrorCode.NONE
        except ApiError as error:
            instance.last_error = error.code
            raise
        finally:
            instance.is_terminating = push.is_terminating

    def disconnected(self, instance_id: bytes) -> None:
        """A client that connects again may ask for its subscription at once."""
        instance = self._instances.get(instance_id)
        if instance is not None:
            instance.forget_requests()

    def values(self) -> Iterator[ShownValue]:
        """The last values of every client."""
        now_ms = self._clock.monotonic_ms()
        for instance_id, instance in list(self._instances.items()):
            if instance.is_silent(now_ms):
                self._forget(instance_id)
                continue
            identity = instance.identity
            software = f"{identity.software_name} {identity.software_version}".strip()
            client_id = identity.client_id[:CLIENT_ID_CHARACTERS_MAX]
            for (metric, attributes), value in list(instance.values.items()):
                shown = ",".join(f"{key}={text}" for key, text in attributes)
                yield ShownValue(client_id, uuid_text(instance_id), software, metric, shown, value)

    # -- checks --------------------------------------------------------------------------------------------------------------

    def _check(self, push: TelemetryPush, instance: _ClientInstance) -> None:
        if instance.is_terminating:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the client has pushed for the last time before it ends, and pushes again")
        if not instance.may_push(self._clock.monotonic_ms()) and not push.is_terminating:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the push came before it was due")
        if push.subscription_id != instance.subscription.subscription_id:
            raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed: ask for it again")
        try:
            compression_type(push.compression_code)
        except UnsupportedCompression as error:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, str(error)) from None
        if len(push.metrics) > self.telemetry_bytes_max:
            raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE, f"a push has at most {self.telemetry_bytes_max} bytes")

    def _take(self, push: TelemetryPush, instance: _ClientInstance) -> None:
        self.pushes += 1
        if not push.metrics:
            return
        try:
            # Without a bound of its own, a megabyte could unpack to gigabytes.
            data = decompress(compression_type(push.compression_code), push.metrics, self.telemetry_bytes_max)
            decoded = decode_metrics(data, VALUES_PER_CLIENT_MAX)
        except DecompressionLimitExceeded as error:
            raise ApiError(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from None
        except (RecordError, MalformedRequest) as error:
            raise ApiError(ErrorCode.INVALID_RECORD, f"the metrics cannot be read: {error}") from None
        self.values_dropped += decoded.is_cut
        values = {(point.metric, point.attributes): point.value for point in decoded.points}
        self._value_count += len(values) - len(instance.values)
        instance.values = values
        for other in list(self._instances.values()):
            if self._value_count <= VALUES_MAX:
                break
            self._value_count -= len(other.values)
            self.values_dropped += len(other.values)
            other.values = {}

    # -- instances and subscriptions -----------------------------------------------------------------------------------------

    def _instance(self, instance_id: bytes, identity: ClientIdentity) -> _ClientInstance:
        self._read_subscriptions()
        # Whoever is seen moves to the end.
        instance = self._instances.pop(instance_id, None)
        if instance is None:
            if len(self._instances) >= INSTANCES_MAX:
                self._forget(next(iter(self._instances)))
            instance = _ClientInstance(identity, self._subscription_of(instance_id, identity), self._version)
        elif instance.subscriptions_version != self._version:
            instance.renew(self._subscription_of(instance_id, identity), self._version)
        self._instances[instance_id] = instance
        instance.seen_ms = self._clock.monotonic_ms()
        return instance

    def _forget(self, instance_id: bytes) -> None:
        instance = self._instances.pop(instance_id)
        self._value_count -= len(instance.values)

    def _new_id(self) -> bytes:
        while True:
            instance_id = self._randomness.token(16)
            if instance_id not in self._instances and instance_id not in _RESERVED_IDS:
                return instance_id

    def _read_subscriptions(self) -> None:
        image = self._image
        if image.version == self._image_version:
            return
        self._image_version = image.version
        names = sorted(name for kind, name in image.configs.resources() if kind == ResourceType.CLIENT_METRICS)
        settings = {name: dict(image.configs_of(ResourceType.CLIENT_METRICS, name)) for name in names}
        if settings == self._settings:
            return
        self._settings = dict(settings)
        self._version += 1
        self._matchers = []
        for texts in settings.values():
            values = read_leniently(CLIENT_METRICS, texts)
            patterns, metrics, interval_ms = values[MATCH], values[METRICS], values[PUSH_INTERVAL_MS]
            assert isinstance(patterns, tuple)
            assert isinstance(metrics, tuple)
            assert isinstance(interval_ms, int)
            try:
                self._matchers.append((read_match(patterns), metrics, interval_ms))
            except InvalidSetting:
                continue  # Another release accepted a pattern that this one cannot read; it must not match everybody.

    def _subscription_of(self, instance_id: bytes, identity: ClientIdentity) -> Subscription:
        attributes = {
            "client_instance_id": uuid_text(instance_id),
            "client_id": identity.client_id,
            "client_software_name": identity.software_name,
            "client_software_version": identity.software_version,
            "client_source_address": identity.address,
        }
        wanted: set[str] = set()
        interval_ms = PUSH_INTERVAL_MS_DEFAULT
        for matchers, metrics, each_interval_ms in self._matchers:
            if all(matches(attributes[name]) for name, matches in matchers.items()):
                wanted.update(metrics)
                interval_ms = min(interval_ms, each_interval_ms)
        chosen = (ALL_METRICS,) if ALL_METRICS in wanted else tuple(sorted(wanted))
        checksum = crc32(f"{interval_ms} {chosen}".encode(), crc32(instance_id))
        return Subscription(checksum - (1 << 32) if checksum >= 1 << 31 else checksum, interval_ms, chosen)


def uuid_text(instance_id: bytes) -> str:
    """The id as Kafka's tools print it."""
    return urlsafe_b64encode(instance_id).decode().rstrip("=")
