"""The life of this broker in its cluster: it registers, catches up, sends heartbeats, and leaves (KIP-631).

    registering --epoch--> catching up --image has it, unfenced--> running --stop--> leaving --granted, or in vain--> left

Everything goes to the active controller, wherever that is, also when it is in this very process. The broker is told its epoch,
the offset of its registration. When its image has reached that offset it knows all that was decided before, so it may judge its
logs and serve; its heartbeats say so, and the controller unfences it. From then on a heartbeat every
``broker.heartbeat.interval.ms`` keeps its session. A broker that was fenced nevertheless, because it was paused or cut off, is
unfenced by its next heartbeats. One whose metadata log failed does not learn what it leads any more, and asks to be fenced.

A registration that is refused because another process lives under this id is tried again, since that process may be our own
predecessor. Other refusals end the start.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

from tidelog.broker.controller_channel import ControllerChannel, ControllerRequest
from tidelog.broker.timers import Timer
from tidelog.config.listeners import ListenerRole, NamedListener
from tidelog.controller.brokers import epoch_of_crashed
from tidelog.controller.errors import ApiError
from tidelog.metadata.features import SUPPORTED_FEATURES
from tidelog.ports.network import Network
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import DecodedMessage
from tidelog.wire.protocol import ApiKey

if TYPE_CHECKING:
    from tidelog.broker.broker import BrokerNode

OnDone = Callable[[Exception | None], None]

PLAINTEXT = 0
NO_EPOCH = -1
REGISTRATION = ApiKey.BROKER_REGISTRATION, 4
HEARTBEAT = ApiKey.BROKER_HEARTBEAT, 1
CONTROLLER_REGISTRATION = ApiKey.CONTROLLER_REGISTRATION, 0
RETRY_MS = 100
# How long a request may wait for a controller before it is asked again, with what is true then.
REQUEST_MS_MAX = 5_000
# A broker that waits says so this often.
WAITING_REPORT_MS = 5_000
# How long a broker that stops waits for others to take over. Without a controller nobody can.
LEAVE_MS_MAX = 5_000
# Another attempt may succeed, perhaps at another controller.
_PASSING = frozenset(
    (
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)


class BrokerState(IntEnum):
    """Kafka's numbers, where Kafka has the state."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    """Registered; the image has not reached the registration yet, or the controller has not unfenced the broker."""
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


def _endpoint(listener: NamedListener) -> dict[str, object]:
    advertised = listener.advertised
    return {"name": listener.name, "host": advertised.host, "port": advertised.port, "security_protocol": PLAINTEXT}


_FEATURES = [
    {"name": name, "min_supported_version": low, "max_supported_version": high}
    for name, (low, high) in SUPPORTED_FEATURES.items()
]


class BrokerLifecycle:
    def __init__(self, node: "BrokerNode", network: Network) -> None:
        self._node = node
        self._channel = ControllerChannel(node, network, "lifecycle")
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = NO_EPOCH
        self._was_registration_sent = False
        # Whether the image has reached the present registration.
        self._is_caught_up = False
        self._on_caught_up: Callable[[], None] | None = None
        self._on_running: OnDone | None = None
        self._on_left: Callable[[], None] | None = None
        self._timer: Timer | None = None
        self._leave_timer: Timer | None = None
        self._heartbeat: ControllerRequest | None = None
        self._refusal = ""

    @property
    def is_joining(self) -> bool:
        """Whether this broker wants to be part of the cluster, and is not."""
        return self.state in (BrokerState.STARTING, BrokerState.RECOVERY)

    @property
    def refusal(self) -> str:
        """Why the last registration failed, while this broker has none."""
        return self._refusal if self.state is BrokerState.STARTING else ""

    @property
    def epoch_of_clean_stop(self) -> int:
        """What a clean stop writes down for the next start. A registration whose answer never came makes it unknown."""
        if self.broker_epoch != NO_EPOCH:
            return self.broker_epoch
        return NO_EPOCH if self._was_registration_sent else self._node.directory.previous_broker_epoch

    @property
    def _previous_epoch(self) -> int:
        """The epoch of the last process on this directory, as the registration reports it."""
        directory = self._node.directory
        if directory.previous_broker_epoch == NO_EPOCH and directory.last_broker_epoch != NO_EPOCH:
            return epoch_of_crashed(directory.last_broker_epoch)
        return directory.previous_broker_epoch

    # -- starting ------------------------------------------------------------------------------------------------------------

    def start(self, on_caught_up: Callable[[], None], on_running: OnDone) -> None:
        """``on_caught_up`` is called when the image has the registration, and ``on_running`` when the broker is unfenced, or
        with the error that ends the start."""
        self.state = BrokerState.STARTING
        self._on_caught_up = on_caught_up
        self._on_running = on_running
        self._forget_epoch()

    def _forget_epoch(self) -> None:
        """From when the registration is sent until it is answered, nobody can tell the epoch of this directory."""

        def forgotten(error: BaseException | None) -> None:
            self._report_unwritten(error)
            if self.state is BrokerState.STARTING:
                self._register()

        self._node.directory.forget_broker_epoch(forgotten)

    def _report_unwritten(self, error: BaseException | None) -> None:
        if error is not None:
            self._node.report("broker_epoch_not_written", {"error": str(error)})

    def _register(self) -> None:
        node, config = self._node, self._node.config
        directory_id = node.directory.meta.directory_id
        # Controllers are not brokers: who looks for brokers must not find their listeners.
        listeners = [_endpoint(listener) for listener in config.listeners if listener.role is not ListenerRole.CONTROLLER]
        fields = {
            "broker_id": config.node_id,
            "cluster_id": config.cluster_id,
            "incarnation_id": node.incarnation_id,
            "listeners": listeners,
            "features": _FEATURES,
            "rack": config.values["broker.rack"],
            "is_migrating_zk_broker": False,
            "log_dirs": [directory_id] if directory_id is not None else [],
            "previous_broker_epoch": self._previous_epoch,
        }
        self._was_registration_sent = True
        self._channel.request(REGISTRATION, fields, self._registered, self._registration_failed, REQUEST_MS_MAX)

    def _registered(self, response: DecodedMessage) -> None:
        if self.state is not BrokerState.STARTING:
            return
        if response.error_code == ErrorCode.NONE:
            self._node.directory.note_broker_epoch(response.broker_epoch, partial(self._epoch_noted, response.broker_epoch))
            return
        code = ErrorCode(response.error_code)
        error = ApiError(code, f"the active controller refused to register broker {self._node.config.node_id}: {code.message}")
        if code in _PASSING:
            self._registration_failed(error)
        else:
            self._fail(error)

    def _epoch_noted(self, broker_epoch: int, error: BaseException | None) -> None:
        """From now on the directory holds what this process writes. Without the note, a crash leaves its epoch unknown."""
        self._report_unwritten(error)
        if self.state is BrokerState.STARTING:
            self.broker_epoch = broker_epoch
            self.state = BrokerState.RECOVERY
            self._is_caught_up = False
            self.image_changed()

    def _registration_failed(self, error: Exception) -> None:
        self._refusal = str(error)
        if self.state is BrokerState.STARTING:
            self._timer = self._node.timers.schedule(RETRY_MS, self._register)

    def fail_start(self, error: Exception) -> None:
        """Something else makes the start impossible."""
        if self._on_running is not None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.state = BrokerState.NOT_RUNNING
        self._started(error)

    def _started(self, error: Exception | None) -> None:
        on_running, self._on_running = self._on_running, None
        if on_running is not None:
            on_running(error)

    def image_changed(self) -> None:
        """The image has more than before."""
        if self.state is not BrokerState.RECOVERY or self._node.quorum.applied_offset <= self.broker_epoch:
            return
        if not self._is_caught_up:
            self._is_caught_up = True
            on_caught_up, self._on_caught_up = self._on_caught_up, None
            if on_caught_up is not None:
                on_caught_up()
            self._beat()
        registered = self._node.image.brokers.find(self._node.config.node_id)
        if registered is not None and registered.broker_epoch == self.broker_epoch and not registered.fenced:
            self.state = BrokerState.RUNNING
            self._started(None)

    # -- heartbeats ----------------------------------------------------------------------------------------------------------

    def controller_changed(self) -> None:
        self._channel.controller_changed()
        if self.state >= BrokerState.RECOVERY and self._heartbeat is None and self._is_caught_up:
            # The new controller wants to hear of everybody soon.
            self._beat()

    def _beat(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat is not None or self.state is BrokerState.SHUTTING_DOWN:
            return
        fields = {
            "broker_id": self._node.config.node_id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self._node.quorum.applied_offset - 1,
            # Whoever no longer follows the metadata must not lead what the others think it leads.
            "want_fence": self._node.quorum.failure is not None,
            "want_shut_down": self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            "offline_log_dirs": [],
        }
        # A session of this length has ended if no answer came within it.
        timeout_ms = int(self._node.config.values["broker.session.timeout.ms"])
        answered: list[bool] = []

        def replied(response: DecodedMessage) -> None:
            answered.append(True)
            self._heartbeat = None
            self._beaten(response)

        def failed(_: Exception) -> None:
            answered.append(True)
            self._heartbeat = None
            self._beat_after(RETRY_MS)

        heartbeat = self._channel.request(HEARTBEAT, fields, replied, failed, timeout_ms)
        if not answered:
            self._heartbeat = heartbeat

    def _beaten(self, response: DecodedMessage) -> None:
        code = response.error_code
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and (response.should_shut_down or code != ErrorCode.NONE):
            self._left()
        elif code in (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH):
            # Somebody unregistered this broker, or took its id. It is not part of the cluster until it has registered again.
            self._node.report("broker_registration_lost", {"error": ErrorCode(code).name})
            self._register_again()
        elif code != ErrorCode.NONE:
            self._beat_after(RETRY_MS)
        elif self._node.quorum.failure is not None:
            self._beat_after(int(self._node.config.values["broker.heartbeat.interval.ms"]))
        elif self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN or response.is_fenced:
            # The next step follows from the answer: there is no reason to wait.
            self._beat_after(0 if response.is_caught_up else RETRY_MS)
        else:
            self._beat_after(int(self._node.config.values["broker.heartbeat.interval.ms"]))

    def _beat_after(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._node.timers.schedule(delay_ms, self._beat)

    def _register_again(self) -> None:
        self.broker_epoch = NO_EPOCH
        self.state = BrokerState.STARTING
        self._timer = self._node.timers.schedule(RETRY_MS, self._forget_epoch)

    # -- leaving -------------------------------------------------------------------------------------------------------------

    def leave(self, on_left: Callable[[], None]) -> None:
        """Let others take over before this broker stops. If nobody answers, it leaves all the same: its session will end."""
        if self.state is not BrokerState.RUNNING:
            self._stop()
            on_left()
            return
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._on_left = on_left
        self._leave_timer = self._node.timers.schedule(LEAVE_MS_MAX, self._leave_in_vain)
        if self._heartbeat is None:
            self._beat()

    def _leave_in_vain(self) -> None:
        self._node.report("left_without_controller", {"after_ms": LEAVE_MS_MAX})
        self._left()

    def _left(self) -> None:
        self._stop()
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left()

    def _stop(self) -> None:
        self.state = BrokerState.SHUTTING_DOWN
        for timer in (self._timer, self._leave_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._leave_timer = None
        self._heartbeat = None
        self._channel.close()

    def close(self) -> None:
        self._stop()


class ControllerRegistrar:
    """Tells the active controller this controller's listeners, once per process."""

    def __init__(self, node: "BrokerNode", network: Network) -> None:
        self._node = node
        self._channel = ControllerChannel(node, network, "controller-registration")
        self._is_closed = False

    def start(self) -> None:
        node = self._node
        listeners = [_endpoint(listener) for listener in node.config.listeners if listener.role is ListenerRole.CONTROLLER]
        # A controller that nobody can connect to has nothing to tell.
        if listeners and not self._is_closed:
            fields = {
                "controller_id": node.config.node_id,
                "incarnation_id": node.incarnation_id,
                "zk_migration_ready": False,
                "listeners": listeners,
                "features": _FEATURES,
            }
            self._channel.request(CONTROLLER_REGISTRATION, fields, self._registered, self._failed, REQUEST_MS_MAX)

    def _registered(self, response: DecodedMessage) -> None:
        if response.error_code != ErrorCode.NONE:
            self._retry()

    def _failed(self, _: Exception) -> None:
        self._retry()

    def _retry(self) -> None:
        if not self._is_closed:
            self._node.timers.schedule(REQUEST_MS_MAX, self.start)

    def controller_changed(self) -> None:
        self._channel.controller_changed()

    def close(self) -> None:
        self._is_closed = True
        self._channel.close()


class WaitingReports:
    """Says every ``WAITING_REPORT_MS`` what this node waits for, and which peers it cannot reach: while its broker is not part of
    the cluster, and while no leader of the quorum answers, most likely because there is no majority to elect one."""

    def __init__(self, node: "BrokerNode") -> None:
        self._node = node
        self._timer: Timer | None = None
        self._is_closed = False

    def look(self) -> None:
        """The leadership has changed, or may have."""
        if not self._is_waiting:
            self._cancel()
        elif self._timer is None and not self._is_closed:
            self._timer = self._node.timers.schedule(WAITING_REPORT_MS, self._report)

    @property
    def _is_waiting(self) -> bool:
        quorum = self._node.quorum
        return self._node.lifecycle.is_joining or not quorum.hears_leader

    def _report(self) -> None:
        self._timer = None
        if self._is_waiting:
            node, quorum = self._node, self._node.quorum
            facts: dict[str, object] = {"leader": quorum.leader_id, "voters": quorum.voters.ids}
            if node.lifecycle.state is not BrokerState.NOT_RUNNING:
                facts["state"] = node.lifecycle.state.name.lower()
            if quorum.unreachable_peers:
                facts["unreachable"] = quorum.unreachable_peers
            if node.lifecycle.refusal:
                facts["refused"] = node.lifecycle.refusal
            if quorum.failure is not None:
                facts["failed"] = f"this node has left the quorum until it is restarted: {quorum.failure}"
            node.report("waiting_for_controller", facts)
        self.look()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._is_closed = True
        self._cancel()
