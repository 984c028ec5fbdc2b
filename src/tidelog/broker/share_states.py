"""The share coordinator as the rest of the broker sees it: states of share partitions, by key, with callbacks.

The coordinator of a key is the leader of the partition of ``__share_group_state`` that Kafka would choose for it: this broker, or
another one, which is asked over the listener between brokers. The topic is created when a state is first initialized.

A call that finds the coordinator gone, moving or loading is repeated for a while, because leadership returns within seconds. The
broker that did not answer may have decided it all the same, and then it is decided twice: every call may be, since the
coordinator never takes back what is final.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.broker.coordinator_service import CoordinatorService
from tidelog.broker.share_state_calls import (
    SUMMARY,
    StateCall,
    delete_call,
    initialize_call,
    read_call,
    read_reply,
    request_fields,
    summary_call,
    write_call,
)
from tidelog.coordinator.errors import CoordinatorError, CoordinatorNotAvailable, DecisionTooLarge
from tidelog.coordinator.machine import CoordinatorResult, OnDone
from tidelog.log.data_directory import DataDirectory
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import NO_LEADER
from tidelog.metadata.topics import TopicImage
from tidelog.ports.clock import Clock
from tidelog.queues.records import SharePartitionKey
from tidelog.queues.share_coordinator import ShareCoordinator, ShareState, ShareStateSummary, ShareStateWrite
from tidelog.wire.messages import DecodedMessage

if TYPE_CHECKING:
    from tidelog.broker.broker_channels import BrokerChannels
    from tidelog.broker.peer_channel import PeerError
    from tidelog.broker.timers import Timers

Shares = CoordinatorService[ShareCoordinator]
IsWanted = Callable[[], bool]

# The coordinator is asked again after this time.
RETRY_MS = 100
# This often, which is longer than the loss of a broker takes to be noticed; then whoever waits is told.
ATTEMPTS_MAX = 150
# The states of a topic that does not exist are kept for so long: a broker that hears of new topics later does not lead any more.
ORPHANED_MS_MIN = 60_000


def coordinator_key(key: SharePartitionKey) -> str:
    """The key by which FindCoordinator finds it: group, topic id and partition."""
    topic_id = urlsafe_b64encode(key.topic_id).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


class StatePorts(NamedTuple):
    """What the states need of their broker."""

    node_id: int
    clock: Clock
    image: ClusterImage
    directory: DataDirectory
    settings: Any
    peers: "BrokerChannels"
    timers: "Timers"


class ShareStates:
    __slots__ = ("_ports", "_unknown", "service")

    def __init__(self, service: Shares, ports: StatePorts) -> None:
        self.service = service
        self._ports = ports
        # By shard: the ids of topics with states that did not exist when ``delete_orphans`` looked last, and since when.
        self._unknown: dict[str, Mapping[bytes, int]] = {}

    # -- states --------------------------------------------------------------------------------------------------------------

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, on_done: OnDone) -> None:
        def begin(topic: TopicImage | None, error: Exception | None) -> None:
            if topic is None:
                on_done(None, error)
            else:
                self._repeat(initialize_call(key, state_epoch, start_offset), on_done)

        self.service.with_topic(begin)

    def read(self, key: SharePartitionKey, leader_epoch: int, on_done: OnDone) -> None:
        """``on_done`` gets a ShareState, and whether all of it is from earlier leaders. The coordinator is asked once: a leader
        that begins asks again as long as it is one."""

        def summarized(found: ShareStateSummary | None, error: Exception | None) -> None:
            if found is None:
                on_done(None, error)
                return
            is_inherited = found.is_written_before(leader_epoch)

            def read(state: ShareState | None, error: Exception | None) -> None:
                on_done(None if state is None else (state, is_inherited), error)

            self.ask(read_call(key, leader_epoch), read)

        # Asked first, because the state has the epoch of whoever has read it last.
        self.ask(summary_call(key), summarized)

    def write(self, key: SharePartitionKey, change: ShareStateWrite, on_done: OnDone, is_wanted: IsWanted) -> None:
        """Repeated while ``is_wanted`` says so. A leader that was dropped has started over from what was written until then, and
        nothing may be answered any more that it has not seen."""
        self._repeat(write_call(key, change), on_done, is_wanted)

    def delete(self, key: SharePartitionKey, on_done: OnDone) -> None:
        if self.service.topic is None:
            on_done(None, None)
        else:
            self._repeat(delete_call(key), on_done)

    def summary(self, key: SharePartitionKey, on_done: OnDone) -> None:
        """``on_done`` gets a ShareStateSummary."""
        self._repeat(summary_call(key), on_done)

    # -- asking --------------------------------------------------------------------------------------------------------------

    def _repeat(self, call: StateCall, on_done: OnDone, is_wanted: IsWanted | None = None) -> None:
        _RepeatedCall(self, self._ports.timers, call, on_done, is_wanted).start()

    def ask(self, call: StateCall, on_done: OnDone) -> None:
        """Ask the coordinator of the key, wherever it is."""
        topic = self.service.topic
        leader = NO_LEADER if topic is None else self.service.locate(topic, coordinator_key(call.key)).leader
        if leader in (NO_LEADER, self._ports.node_id):
            self.ask_here(call, on_done)
            return

        def replied(reply: DecodedMessage) -> None:
            try:
                result = read_reply(call, reply)
            except Exception as error:
                on_done(None, error)
            else:
                on_done(result, None)

        def failed(error: "PeerError") -> None:
            on_done(None, CoordinatorNotAvailable(str(error)))

        api = call.api.key, call.api.versions[1]
        self._ports.peers.request(leader, api, request_fields(call), replied, failed)

    def ask_here(self, call: StateCall, on_done: OnDone) -> None:
        """Ask the coordinator of this broker, which says so if it is not the right one."""
        key = coordinator_key(call.key)
        if call.api is SUMMARY:
            self.service.read(key, lambda machine: machine.summary(call.key), on_done)
        else:
            self.service.write(key, call.decide, on_done)

    # -- housekeeping --------------------------------------------------------------------------------------------------------

    def delete_topics(self, topic_ids: frozenset[bytes]) -> None:
        """Topics were deleted: their states go with them. A shard that is not available now does it later, see
        ``delete_orphans``."""
        for shard in self.service.runtime:
            shard.write(lambda machine: machine.delete_topics(topic_ids))

    def delete_orphans(self) -> None:
        """Delete the states of topics that have not existed for a while. The state of a new topic may be here before this broker
        hears of the topic."""
        unknown_before, self._unknown = self._unknown, {}
        for shard in self.service.runtime:
            shard.write(partial(self._delete_orphans, shard.name, unknown_before.get(shard.name, {})))

    def _delete_orphans(self, name: str, unknown_before: Mapping[bytes, int], machine: ShareCoordinator) -> CoordinatorResult:
        image, now_ms = self._ports.image, self._ports.clock.monotonic_ms()
        unknown = [topic_id for topic_id in machine.topic_ids() if image.topic_by_id(topic_id) is None]
        since = self._unknown[name] = {topic_id: unknown_before.get(topic_id, now_ms) for topic_id in unknown}
        return machine.delete_topics({topic_id for topic_id in unknown if now_ms - since[topic_id] >= ORPHANED_MS_MIN})

    def snapshot_cold(self) -> None:
        age_ms = self._ports.settings["share.coordinator.cold.partition.snapshot.interval.ms"]
        for shard in self.service.runtime:
            shard.write(lambda machine: machine.snapshot_cold(age_ms))

    def prune(self) -> None:
        """Delete what later records have made redundant. Everything before the offset is durable, as what replaces it is."""
        for shard in self.service.runtime:
            shard.read(lambda machine: machine.redundant_offset(), self._pruner(shard.name))

    def _pruner(self, name: str) -> OnDone:
        def found(offset: int | None, error: Exception | None) -> None:
            topic, _, index = name.rpartition("-")
            log = self._ports.directory.logs.get((topic, int(index)))
            if error is None and offset is not None and log is not None and log.log_start_offset < offset:
                self._ports.directory.delete_records(log, min(offset, log.high_watermark), _ignore)

        return found


def _ignore(error: BaseException | None) -> None:
    """What could not be deleted now is deleted the next time."""


class _RepeatedCall:
    """One call, until it is decided, refused, or nobody wants it any more."""

    __slots__ = ("_attempts", "_call", "_is_wanted", "_on_done", "_states", "_timers")

    def __init__(
        self, states: ShareStates, timers: "Timers", call: StateCall, on_done: OnDone, is_wanted: IsWanted | None
    ) -> None:
        self._states = states
        self._timers = timers
        self._call = call
        self._on_done = on_done
        self._is_wanted = is_wanted
        self._attempts = 0

    def start(self) -> None:
        self._attempts += 1
        self._states.ask(self._call, self._answered)

    def _answered(self, result: Any, error: Exception | None) -> None:
        is_passing = isinstance(error, CoordinatorError) and not isinstance(error, DecisionTooLarge)
        is_wanted = self._is_wanted is None or self._is_wanted()
        if is_passing and is_wanted and self._attempts < ATTEMPTS_MAX:
            self._timers.schedule(RETRY_MS, self._again)
        else:
            self._on_done(result, error)

    def _again(self) -> None:
        if self._is_wanted is None or self._is_wanted():
            self.start()
        else:
            self._on_done(None, CoordinatorNotAvailable("the share partition was dropped before its state was written"))
