"""Decides what becomes of the processes of ``tidelog up``: when each is started, started again, told to stop, or killed.

``Supervisor`` has no process, clock or signal of its own. The shell tells it what happened and then takes its orders:

    tick(now_ms)                          time passed; call it when ``next_deadline_ms`` is due
    ready(node_id, now_ms)                the broker serves clients
    ended(node_id, status, now_ms)        its process ended
    stop(now_ms)                          somebody wants to end everything; a second later, at once
    take_orders()                         what to do now: StartBroker, StopBroker, KillBroker, Announce

A broker that dies is started again after a pause that doubles each time, so that one that cannot live does not keep the machine
busy, and that is short again once it has lived for a while. One that gives up by itself (exit code 1: a wrong setting, a taken
port) before it ever served ends everything: a person is looking at the terminal and has to do something about it.

To stop, brokers are stopped one after the other, the last one first, so that each can hand over what it leads to those that are
still there. A broker that does not end in time is killed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

PAUSE_MS_MIN = 500
PAUSE_MS_MAX = 30_000
# A broker that has served for this long is healthy; what happened before no longer counts.
HEALTHY_MS = 60_000
# Wrappers pass a signal on that the terminal has sent to the whole group, so one Ctrl-C may arrive twice.
SAME_SIGNAL_MS = 1_000
# Longer than a broker takes to answer what is in flight and to sync its logs.
STOP_MS_MAX = 60_000

EXIT_STOPPED = 0
EXIT_FAILED = 1


class ChildState(Enum):
    PAUSED = "paused"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StartBroker:
    node_id: int


@dataclass(frozen=True, slots=True)
class StopBroker:
    """Ask the process to stop in order (SIGTERM)."""

    node_id: int


@dataclass(frozen=True, slots=True)
class KillBroker:
    node_id: int


@dataclass(frozen=True, slots=True)
class Announce:
    """Something that the person at the terminal wants to know. Without a node it is about the whole cluster."""

    event: str
    node_id: int | None = None
    detail: str = ""


Order = StartBroker | StopBroker | KillBroker | Announce


@dataclass(slots=True)
class _Child:
    node_id: int
    state: ChildState = ChildState.PAUSED
    deadline_ms: int | None = None
    """When it is started (PAUSED), counts as healthy (READY) or is killed (STOPPING)."""
    pause_ms: int = PAUSE_MS_MIN
    has_served: bool = False
    started_ms: int = 0

    @property
    def is_running(self) -> bool:
        return self.state in (ChildState.STARTING, ChildState.READY, ChildState.STOPPING)


class Supervisor:
    def __init__(self, node_ids: Sequence[int], now_ms: int) -> None:
        self._children = {node_id: _Child(node_id) for node_id in node_ids}
        self._orders: list[Order] = []
        self._stop_ms: int | None = None
        self._is_killing = False
        self._was_announced = False
        self.exit_code = EXIT_STOPPED
        for child in self._children.values():
            self._start(child, now_ms)

    @property
    def is_over(self) -> bool:
        """Whether every process is gone, and none will be started again."""
        return self._stop_ms is not None and all(child.state is ChildState.GONE for child in self._children.values())

    @property
    def next_deadline_ms(self) -> int | None:
        return min((child.deadline_ms for child in self._children.values() if child.deadline_ms is not None), default=None)

    def take_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    # -- what happens --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        for child in self._children.values():
            if child.deadline_ms is None or now_ms < child.deadline_ms:
                continue
            child.deadline_ms = None
            if child.state is ChildState.PAUSED:
                self._start(child, now_ms)
            elif child.state is ChildState.READY:
                child.pause_ms = PAUSE_MS_MIN
            elif child.state is ChildState.STOPPING:
                self._orders.append(Announce("killed", child.node_id, f"it did not stop within {STOP_MS_MAX // 1000} s"))
                self._orders.append(KillBroker(child.node_id))

    def ready(self, node_id: int, now_ms: int) -> None:
        child = self._children[node_id]
        if child.state is not ChildState.STARTING:
            return
        child.state = ChildState.READY
        child.has_served = True
        child.deadline_ms = now_ms + HEALTHY_MS
        self._orders.append(Announce("ready", node_id, f"{(now_ms - child.started_ms) / 1000:.1f} s"))
        if not self._was_announced and all(each.has_served for each in self._children.values()):
            self._was_announced = True
            self._orders.append(Announce("cluster_ready"))

    def ended(self, node_id: int, status: int, now_ms: int) -> None:
        """``status`` is its exit code, or the negative number of the signal that ended it."""
        child = self._children[node_id]
        child.deadline_ms = None
        if self._stop_ms is not None:
            child.state = ChildState.GONE
            if status != EXIT_STOPPED:
                self.exit_code = EXIT_FAILED
            self._orders.append(Announce("stopped", node_id, _how(status)))
            self._stop_next(now_ms)
        elif status >= 0 and not child.has_served:
            child.state = ChildState.GONE
            self.exit_code = EXIT_FAILED
            self._orders.append(Announce("failed", node_id, _how(status)))
            self.stop(now_ms)
        else:
            child.state = ChildState.PAUSED
            child.deadline_ms = now_ms + child.pause_ms
            detail = f"{_how(status)}; it starts again in {child.pause_ms / 1000:g} s"
            self._orders.append(Announce("ended", node_id, detail))
            child.pause_ms = min(2 * child.pause_ms, PAUSE_MS_MAX)

    def stop(self, now_ms: int) -> None:
        if self._stop_ms is not None:
            if not self._is_killing and now_ms - self._stop_ms >= SAME_SIGNAL_MS:
                self._is_killing = True
                self._orders += [KillBroker(child.node_id) for child in self._children.values() if child.is_running]
            return
        self._stop_ms = now_ms
        for child in self._children.values():
            if child.state is ChildState.PAUSED:
                child.state = ChildState.GONE
                child.deadline_ms = None
        self._stop_next(now_ms)

    # -- decisions -----------------------------------------------------------------------------------------------------------

    def _start(self, child: _Child, now_ms: int) -> None:
        child.state = ChildState.STARTING
        child.deadline_ms = None
        child.started_ms = now_ms
        self._orders.append(StartBroker(child.node_id))

    def _stop_next(self, now_ms: int) -> None:
        running = [child for child in self._children.values() if child.is_running]
        if not running or any(child.state is ChildState.STOPPING for child in running):
            return
        child = running[-1]
        child.state = ChildState.STOPPING
        child.deadline_ms = now_ms + STOP_MS_MAX
        self._orders.append(StopBroker(child.node_id))


def _how(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"
