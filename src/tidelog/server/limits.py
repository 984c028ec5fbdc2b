"""The limits on what clients may use, and the mechanisms that enforce them.

``ConnectionLimits`` has the figures, each with its reason. A limit on bytes makes the broker read more slowly and never makes it
refuse: the broker stops reading from a client that sends faster than it is answered, or that does not read its responses, and
TCP pushes back. Only a limit on connections or on time closes a connection.

``MemoryBudget`` bounds the bytes that all connections hold together. ``TimingWheel`` checks the time limits of thousands of
connections with one timer. ``SlowTurnPenalty`` keeps a few expensive clients from taking the whole event loop.
"""

import gc
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from time import thread_time_ns
from typing import Any, Protocol

from tidelog.server.event_log import ReportEvent, ignore_event

_MIB = 1024 * 1024
# The frame limit until the first valid request. It is enough for a client that produces immediately, and too little for a peer
# that is not a Kafka client: the first four letters of an HTTP request read as a size of more than a gigabyte.
FIRST_FRAME_BYTES_MAX = 8 * _MIB
# Waiting connections continue once a good part of the memory budget is free, not after every byte.
MEMORY_RESUME_FRACTION = 0.75

# The time that a connection has for the frame for which it is exempt from the budget, and how much longer per byte of the frame.
EXEMPT_SECONDS_MAX = 10.0
EXEMPT_BYTES_PER_SECOND = _MIB

WHEEL_SLOT_COUNT = 32
WHEEL_SLOT_SECONDS_MAX = 1.0
WHEEL_SLOT_SECONDS_MIN = 0.005

# Ordinary requests take a hundredth of this.
SLOW_TURN_NS_MIN = 20_000_000
PENALTY_FACTOR = 2
PENALTY_SECONDS_MAX = 10.0
# Reading the processor time takes a third of a microsecond, so under load this makes it one in many turns.
PROCESSOR_SAMPLE_NS = 1_000_000
REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections_max: int = 10_000
    """``max.connections``. A connection costs a descriptor and some 20 KB."""
    connections_per_address_max: int = 10_000
    """``max.connections.per.ip``. By default no less than ``max.connections``: one machine may run every client."""
    frame_bytes_max: int = 100 * _MIB
    """``socket.request.max.bytes``."""
    first_frame_bytes_max: int = FIRST_FRAME_BYTES_MAX
    """The same limit until the first valid request."""
    in_flight_bytes_max: int = 32 * _MIB
    """The limit on a connection's unanswered requests: as much as a client may have unsynced. A single request may exceed it."""
    unsent_bytes_max: int = 2 * _MIB
    """The limit on responses that one client has not read yet, including slices of files. Responses to requests in flight may
    exceed it. It is more than a fetch of the clients' default size (1 MiB), because stopping and restarting the reader costs half
    a request."""
    send_buffer_bytes: int = 256 * 1024
    """``socket.send.buffer.bytes``, or -1 for the kernel's own choice, which grows to megabytes. A response that lies in the
    kernel as a whole has left the processor's cache when the client reads it, and both sides pay for that: a fetch of 1 MiB
    takes a third less of either's time with this bound."""
    memory_bytes_max: int = 256 * _MIB
    """``queued.max.request.bytes``, for all connections: requests in flight, unsent responses in memory, and receive buffers that
    have grown. One frame may exceed it (see ``MemoryBudget``)."""
    idle_ms_max: int = 600_000
    """``connections.max.idle.ms``."""
    handshake_ms_max: int = 30_000
    """The limit from the connection to the first valid request. A Kafka client sends one as soon as it is connected."""
    frame_stall_ms_max: int = 60_000
    """The limit for silence in the middle of a frame: the client is gone, and its buffer may be large."""
    send_stall_ms_max: int = 120_000
    """The limit for a client that takes no byte of a response. Clients that only pause keep reading into their own buffers."""
    stop_ms_max: int = 5_000
    """The limit for requests in flight when the broker stops. Long polls may take longer; they lose nothing."""

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> "ConnectionLimits":
        """Take the limits from the broker's parsed settings; limits without a setting keep their defaults."""
        return cls(
            connections_max=values["max.connections"],
            connections_per_address_max=values["max.connections.per.ip"],
            frame_bytes_max=values["socket.request.max.bytes"],
            first_frame_bytes_max=min(FIRST_FRAME_BYTES_MAX, values["socket.request.max.bytes"]),
            send_buffer_bytes=values["socket.send.buffer.bytes"],
            memory_bytes_max=values["queued.max.request.bytes"],
            idle_ms_max=values["connections.max.idle.ms"],
        )

    def shortest_ms(self) -> int:
        return min(self.idle_ms_max, self.handshake_ms_max, self.frame_stall_ms_max, self.send_stall_ms_max)


class MemoryHolder(Protocol):
    def resume(self) -> None: ...


class MemoryBudget:
    """What all connections together may hold of requests that are received or in progress and of responses.

    The limits of one connection do not protect the process against a thousand connections that each stay below them. When the
    budget is used up, connections that hold nothing go on as before (each takes at most one small buffer), and those that hold
    something wait until enough has been returned. A connection in the middle of a large frame holds memory that only the rest of
    the frame can free, so if all such connections waited, they would wait forever. Therefore one that asks is exempt from the
    budget for this one frame, and then the next one. Their requests may wait for a slow disk, and each of a thousand connections
    would add a frame to them; so the next one is exempt only if everything together stays below the budget and the largest frame,
    or if nothing of those before it is unanswered. One that stops in the middle of its frame, because it does not read its
    responses, for example, keeps the place for the rest of the frame.

    Everybody else waits for the one that is exempt, so it has a time limit for its frame: however many bytes it sends now and
    then, ``late_since`` says when its time ran out.
    """

    __slots__ = (
        "_bytes_max",
        "_call_soon",
        "_clock",
        "_exempt",
        "_exempt_until",
        "_frame_bytes_max",
        "_reserved",
        "_unanswered",
        "_waiting",
        "used_bytes",
    )

    def __init__(
        self,
        bytes_max: int,
        frame_bytes_max: int,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._bytes_max = bytes_max
        self._frame_bytes_max = frame_bytes_max
        self._call_soon = call_soon
        self._clock = clock
        self._exempt: MemoryHolder | None = None
        self._exempt_until = 0.0
        # Those that were exempt and stopped in the middle of their frames, with the bytes that the rest may take.
        self._reserved: dict[MemoryHolder, int] = {}
        # Those that were exempt, have their frame, and wait for answers.
        self._unanswered: set[MemoryHolder] = set()
        self._waiting: dict[MemoryHolder, None] = {}
        self.used_bytes = 0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def is_tight(self) -> bool:
        """Whether more than half is used: memory that is only kept for later should be freed."""
        return self.used_bytes * 2 > self._bytes_max

    def may_grow(self, holder: MemoryHolder, frame_bytes: int | None) -> bool:
        """Whether a connection that already holds memory may take more. If not, its ``resume`` is called later.

        ``frame_bytes`` is the size of the large frame in whose middle it is; None if it is in none."""
        if self.used_bytes < self._bytes_max or self._exempt is holder:
            return True
        if frame_bytes is not None and self._exempt is None and self._may_be_exempt(holder, frame_bytes):
            self._reserved.pop(holder, None)
            self._exempt = holder
            self._exempt_until = self._clock() + EXEMPT_SECONDS_MAX + frame_bytes / EXEMPT_BYTES_PER_SECOND
            return True
        self._waiting[holder] = None
        return False

    def _may_be_exempt(self, holder: MemoryHolder, frame_bytes: int) -> bool:
        if holder in self._reserved or not (self._unanswered or self._reserved):
            return True
        taken = self.used_bytes + sum(self._reserved.values())
        return taken + frame_bytes <= self._bytes_max + self._frame_bytes_max

    def late_since(self, holder: MemoryHolder) -> float | None:
        """The time at which an exempt holder should have had its whole frame, if others wait for it; None for anybody else."""
        return self._exempt_until if self._exempt is holder and self._waiting else None

    def change(self, delta: int) -> None:
        self.used_bytes += delta
        if delta < 0 and self._waiting and self.used_bytes <= self._bytes_max * MEMORY_RESUME_FRACTION:
            self._resume_all()

    def frame_is_whole(self, holder: MemoryHolder) -> None:
        """Called when the holder has a large frame. It is not exempt for its next one."""
        if self._reserved.pop(holder, None) is not None:
            self._unanswered.add(holder)
        if self._exempt is holder:
            self._unanswered.add(holder)
            self._end_exemption()

    def reading_stopped(self, holder: MemoryHolder, missing_bytes: int) -> None:
        """Called when the broker stopped reading from the holder, in the middle of a frame of which some bytes are missing."""
        if self._exempt is holder:
            self._reserved[holder] = missing_bytes
            self._end_exemption()

    def all_answered(self, holder: MemoryHolder) -> None:
        """Called when all requests of the holder are answered."""
        if holder in self._unanswered:
            self._unanswered.remove(holder)
            if self._exempt is None and self._waiting:
                self._resume_all()

    def forget(self, holder: MemoryHolder) -> None:
        self._waiting.pop(holder, None)
        had_place = self._reserved.pop(holder, None) is not None
        if self._exempt is holder:
            self._end_exemption()
        elif had_place and self._exempt is None and self._waiting:
            self._resume_all()
        self.all_answered(holder)

    def _end_exemption(self) -> None:
        self._exempt = None
        if self._waiting:
            self._resume_all()

    def _resume_all(self) -> None:
        waiting = self._waiting
        self._waiting = {}
        for holder in waiting:
            self._call_soon(holder.resume)


class TimeLimited(Protocol):
    def check(self, now: float) -> float | None:
        """Return when to check again, by the loop's clock, or None for never."""
        ...


class TimingWheel:
    """A ring of slots of a fixed width. Each connection is in one slot, is checked when the hand gets there, and says when to
    check it next; a time beyond one revolution is checked once per revolution. So activity costs nothing (nothing moves when a
    byte arrives), a check is late by at most one slot, and a deadline that became shorter in the meantime (a response began to
    wait) is noticed within one revolution.

    ``schedule(seconds, callback)`` is the loop's ``call_later``. The timer runs only while the wheel has members."""

    __slots__ = ("_clock", "_count", "_hand", "_is_running", "_schedule", "_slot_seconds", "_slots")

    def __init__(
        self, clock: Callable[[], float], schedule: Callable[[float, Callable[[], None]], object], shortest_seconds: float
    ) -> None:
        """A revolution takes half of the shortest limit, or ``WHEEL_SLOT_COUNT`` seconds if that is less."""
        self._clock = clock
        self._schedule = schedule
        slot_seconds = shortest_seconds / (2 * WHEEL_SLOT_COUNT)
        self._slot_seconds = min(WHEEL_SLOT_SECONDS_MAX, max(WHEEL_SLOT_SECONDS_MIN, slot_seconds))
        self._slots: list[list[TimeLimited]] = [[] for _ in range(WHEEL_SLOT_COUNT)]
        self._hand = 0
        self._count = 0
        self._is_running = False

    def __len__(self) -> int:
        return self._count

    def add(self, member: TimeLimited) -> None:
        """Add a member. It is checked within one revolution, and stays until its check returns None."""
        self._count += 1
        self._slots[(self._hand + WHEEL_SLOT_COUNT - 1) % WHEEL_SLOT_COUNT].append(member)
        if not self._is_running:
            self._is_running = True
            self._schedule(self._slot_seconds, self._advance)

    def _advance(self) -> None:
        self._hand = (self._hand + 1) % WHEEL_SLOT_COUNT
        due = self._slots[self._hand]
        self._slots[self._hand] = []
        now = self._clock()
        for member in due:
            next_check = member.check(now)
            if next_check is None:
                self._count -= 1
                continue
            slots_ahead = min(WHEEL_SLOT_COUNT - 1, max(1, math.ceil((next_check - now) / self._slot_seconds)))
            self._slots[(self._hand + slots_ahead) % WHEEL_SLOT_COUNT].append(member)
        self._is_running = self._count > 0
        if self._is_running:
            self._schedule(self._slot_seconds, self._advance)


class WorkTime:
    """The processor time of the calling thread, without what the cycle collector took of it.

    A collection runs in whoever's turn makes the allocation that starts it, and cleans up after everybody."""

    __slots__ = ("_began_ns", "_collector_ns")

    def __init__(self) -> None:
        self._began_ns = 0
        self._collector_ns: dict[int, int] = {}
        gc.callbacks.append(self._on_collection)

    def __call__(self) -> int:
        return thread_time_ns() - self._collector_ns.get(get_ident(), 0)

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        # Only one collection runs at a time, and it begins and ends in the same thread.
        if phase == "start":
            self._began_ns = thread_time_ns()
        elif self._began_ns:
            thread = get_ident()
            self._collector_ns[thread] = self._collector_ns.get(thread, 0) + thread_time_ns() - self._began_ns


class SlowTurnPenalty:
    """A connection whose turn held the event loop for long is not read from for a while, so that the others are served.

    A turn is a few requests and ends early when they take long. But a single request may be slow: a metadata request for ten
    thousand topics by name costs a tenth of a second each time. Many such clients would leave nothing for others, since each of
    them has the same right to its turn. So after a turn that used more than ``SLOW_TURN_NS_MIN`` of processor time the connection
    pauses for twice as long, times the number of connections that are paused already. All of them together then have the loop for
    at most half of the time, and anybody else's request waits for one or two of them and not for all.

    Only the client's own work counts. Processor time counts and not the time of day, because on a busy machine everybody's turns
    are long, and a system call may block. Reading it before each turn would cost as much as some turns do. So it is read when the
    last reading is older than ``PROCESSOR_SAMPLE_NS``, and a turn is charged at most that much too much. The collector's time is
    left out (``WorkTime``). A turn in which a module was imported is not charged at all: that happens once for each module.

    A pause is the event ``client_paused``. At most one is reported every ``REPORT_SECONDS``, with the number since the last."""

    __slots__ = (
        "_call_later",
        "_module_count",
        "_processor_ns",
        "_report",
        "_reported_count",
        "_reported_ns",
        "_sampled_modules",
        "_sampled_processor_ns",
        "count",
        "paused_count",
        "sampled_ns",
    )

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        processor_ns: Callable[[], int],
        report: ReportEvent = ignore_event,
        module_count: Callable[[], int] = sys.modules.__len__,
    ) -> None:
        """``processor_ns`` returns the processor time of this thread."""
        self._call_later = call_later
        self._processor_ns = processor_ns
        self._report = report
        self._module_count = module_count
        self.sampled_ns = 0
        self._sampled_processor_ns = 0
        self._sampled_modules = module_count()
        self._reported_ns: int | None = None
        self._reported_count = 0
        self.paused_count = 0
        """Connections that are paused now."""
        self.count = 0
        """Penalties since the start."""

    def sample(self, now_ns: int) -> None:
        """Sample the processor time. Call this before a turn, if the last sample is older than ``PROCESSOR_SAMPLE_NS``."""
        self.sampled_ns = now_ns
        self._sampled_processor_ns = self._processor_ns()
        self._sampled_modules = self._module_count()

    def impose(self, began_ns: int, ended_ns: int, client: str, resume: Callable[[], None]) -> bool:
        """Called after a long turn. Returns whether the connection has to pause; if so, ``resume`` is called when the pause is
        over."""
        before_ns, modules_before = self._sampled_processor_ns, self._sampled_modules
        self.sample(ended_ns)
        spent_ns = min(self._sampled_processor_ns - before_ns, ended_ns - began_ns)
        if spent_ns <= SLOW_TURN_NS_MIN or self._sampled_modules != modules_before:
            return False
        self.paused_count += 1
        self.count += 1
        seconds = min(PENALTY_FACTOR * self.paused_count * spent_ns / 1e9, PENALTY_SECONDS_MAX)

        def end() -> None:
            self.paused_count -= 1
            resume()

        self._call_later(seconds, end)
        self._report_pause(ended_ns, client, spent_ns, seconds)
        return True

    def _report_pause(self, now_ns: int, client: str, spent_ns: int, seconds: float) -> None:
        if self._reported_ns is not None and now_ns - self._reported_ns < REPORT_SECONDS * 1e9:
            return
        facts = {"client": client, "spent_ms": round(spent_ns / 1e6), "paused_ms": round(seconds * 1000)}
        self._report("client_paused", {**facts, "times": self.count - self._reported_count})
        self._reported_ns, self._reported_count = now_ns, self.count
