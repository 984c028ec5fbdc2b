"""One client's socket: bytes in, frames to the session; responses out.

A connection has three states, each with its own owner of transitions:

*Phase*: HANDSHAKE until the first valid request, OPEN, DRAINING while the broker stops, CLOSED. It only moves forward, and CLOSED
is entered once, by ``close``, whoever asks for it. Afterwards every callback returns at once.

*Read state* (``_READ_TRANSITIONS``). Bytes go straight into the frame reader's buffer. Whole frames go to the session, at most
``FRAMES_PER_TURN`` or for ``TURN_NS_MAX`` in a turn, before the other connections have theirs; frames that are left wait in the
buffer (BACKLOGGED) for the next turn (SCHEDULED). Reading stops while the session wants no more, while too much of the client's
is unanswered or unsent, or while all connections together hold too much memory; it goes on when something was answered or sent.
After a turn that held the loop for long the connection is PENALIZED (``SlowTurnPenalty``).

*Send state* (``SendState``). A response is put into the send queue, and the reactor flushes all connections that have responses
when the burst is over, so that pipelined responses share a system call. What the socket does not take is sent when it is writable
(FULL, TURN_OVER). A slice that is not in the page cache (COLD) suspends sending until a helper thread has read it.
"""

import logging
import socket
from collections import deque
from contextlib import suppress
from enum import IntEnum
from functools import partial

from tidelog.log.reading import LogSlice
from tidelog.ports.executor import Completion
from tidelog.server.limits import PROCESSOR_SAMPLE_NS, SLOW_TURN_NS_MIN
from tidelog.server.reactor import Reactor
from tidelog.server.send_queue import ResponsePart, SendQueue, SendState, SliceCutShort
from tidelog.wire.frames import BUFFER_SIZE, FrameReader, InvalidFrame

# A few hundred microseconds of work.
FRAMES_PER_TURN = 32
# The time limit for requests that are not as cheap: as long as any other work on the loop may take.
TURN_NS_MAX = 5_000_000
# A large receive buffer is freed after this long without a byte.
LARGE_BUFFER_SECONDS_MAX = 5.0

CLOSED_BY_CLIENT = "closed by the client"
STOPPING = "the broker is stopping"
_log = logging.getLogger(__name__)


class Phase(IntEnum):
    HANDSHAKE = 0
    OPEN = 1
    DRAINING = 2
    CLOSED = 3


class ReadState(IntEnum):
    READING = 0
    """The loop calls ``_readable`` when bytes arrive. The buffer holds no whole frame, except during a turn."""
    PAUSED = 1
    """Nothing is read, and the buffer holds no whole frame."""
    BACKLOGGED = 2
    """Nothing is read, because frames wait in the buffer."""
    SCHEDULED = 3
    """Frames wait, and the loop is going to call ``_take_turn``."""
    IN_TURN = 4
    """Frames that waited are being handled."""
    PENALIZED = 5
    """Nothing is read until the penalty is over. Frames may wait."""


class ReadEvent(IntEnum):
    ALLOWED = 0
    """The limits, the session and the memory budget allow reading."""
    FORBIDDEN = 1
    TURN_BEGAN = 2
    EMPTIED = 3
    """A turn is over, and the buffer holds no whole frame."""
    FRAMES_LEFT = 4
    """A turn is over, and frames are left."""
    WAS_SLOW = 5
    """A turn is over, and the connection has to pause for it."""
    PENALTY_OVER = 6


# As module globals these cost one lookup on the hot path instead of two.
_CLOSED, _DRAINING, _HANDSHAKE = Phase.CLOSED, Phase.DRAINING, Phase.HANDSHAKE
_READING, _PAUSED, _BACKLOGGED, _SCHEDULED, _IN_TURN, _PENALIZED = ReadState
_ALLOWED, _FORBIDDEN, _TURN_BEGAN, _EMPTIED, _FRAMES_LEFT, _WAS_SLOW, _PENALTY_OVER = ReadEvent
_EMPTY, _COLD = SendState.EMPTY, SendState.COLD

_READ_TRANSITIONS: dict[ReadState, dict[ReadEvent, ReadState]] = {
    _READING: {
        _ALLOWED: _READING,
        _FORBIDDEN: _PAUSED,
        _EMPTIED: _READING,
        _FRAMES_LEFT: _BACKLOGGED,
        _WAS_SLOW: _PENALIZED,
    },
    # The session may forbid reading during a turn that began in READING, so that turn ends here.
    _PAUSED: {
        _ALLOWED: _READING,
        _FORBIDDEN: _PAUSED,
        _EMPTIED: _PAUSED,
        _FRAMES_LEFT: _BACKLOGGED,
        _WAS_SLOW: _PENALIZED,
    },
    _BACKLOGGED: {_ALLOWED: _SCHEDULED, _FORBIDDEN: _BACKLOGGED},
    _SCHEDULED: {_ALLOWED: _SCHEDULED, _FORBIDDEN: _SCHEDULED, _TURN_BEGAN: _IN_TURN},
    _IN_TURN: {
        _ALLOWED: _IN_TURN,
        _FORBIDDEN: _IN_TURN,
        _EMPTIED: _PAUSED,
        _FRAMES_LEFT: _BACKLOGGED,
        _WAS_SLOW: _PENALIZED,
    },
    # The next turn finds out whether frames wait.
    _PENALIZED: {_ALLOWED: _PENALIZED, _FORBIDDEN: _PENALIZED, _PENALTY_OVER: _BACKLOGGED},
}
_WAITS_FOR_SOCKET = frozenset((SendState.FULL, SendState.TURN_OVER))


class ClientConnection:
    __slots__ = (
        "_descriptor",
        "_frames",
        "_held_bytes",
        "_in_flight_bytes",
        "_in_flight_sizes",
        "_is_flush_queued",
        "_opened_at",
        "_phase",
        "_reactor",
        "_read_state",
        "_received_at",
        "_received_ns",
        "_send_began_ns",
        "_send_queue",
        "_send_state",
        "_sent_at",
        "_session",
        "_socket",
        "host",
        "listener_index",
        "peer",
        "received_bytes",
    )

    def __init__(self, reactor: Reactor, accepted: socket.socket, host: str, port: int, listener_index: int = 0) -> None:
        self._reactor = reactor
        self._socket = accepted
        self._descriptor = accepted.fileno()
        self.host = host
        self.listener_index = listener_index
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.received_bytes = 0
        self._phase = _HANDSHAKE
        self._read_state = _PAUSED
        self._send_state = _EMPTY
        self._is_flush_queued = False
        self._frames = FrameReader(reactor.limits.first_frame_bytes_max)
        self._send_queue = SendQueue()
        # The sizes of the requests that the session has not answered, oldest first. It answers them in this order.
        self._in_flight_sizes: deque[int] = deque()
        self._in_flight_bytes = 0
        # The memory that this connection last reported to the budget.
        self._held_bytes = 0
        self._received_ns = self._send_began_ns = 0
        self._opened_at = self._received_at = self._sent_at = reactor.loop.time()
        accepted.setblocking(False)
        # Responses are complete when they are sent: waiting for more to fill a segment only adds delay.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if reactor.limits.send_buffer_bytes > 0:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, reactor.limits.send_buffer_bytes)
        self._session = reactor.broker.session(host, self._send, self.close, self.resume, listener_index)
        reactor.opened(self)
        reactor.resets.watch(accepted, self.close)
        self._update_reading()

    @property
    def is_open(self) -> bool:
        return self._phase is not _CLOSED

    @property
    def unsent_bytes(self) -> int:
        return self._send_queue.unsent_bytes

    @property
    def sent_bytes(self) -> int:
        return self._send_queue.sent_bytes

    # Reading.

    def _readable(self) -> None:
        if self._read_state is not _READING:
            return
        frames = self._frames
        try:
            length = self._socket.recv_into(frames.writable())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if not length:
            self.close(f"{CLOSED_BY_CLIENT} in the middle of a frame" if frames.is_inside_frame else CLOSED_BY_CLIENT)
            return
        frames.received(length)
        self.received_bytes += length
        reactor = self._reactor
        self._received_at = reactor.loop.time()
        self._received_ns = reactor.now_ns()
        self._handle_frames()

    def _handle_frames(self) -> None:
        """Take a turn: pass frames to the session."""
        session, frames, limits = self._session, self._frames, self._reactor.limits
        received_ns = self._received_ns
        handled = 0
        event = _FRAMES_LEFT
        now_ns = self._reactor.now_ns
        penalty = self._reactor.penalty
        began_ns = now_ns()
        if began_ns - penalty.sampled_ns > PROCESSOR_SAMPLE_NS:
            penalty.sample(began_ns)
        try:
            while (
                handled < FRAMES_PER_TURN
                and session.wants_reading
                and self._in_flight_bytes < limits.in_flight_bytes_max
                and self._send_queue.unsent_bytes < limits.unsent_bytes_max
            ):
                frame = frames.next_frame()
                if frame is None:
                    event = _EMPTIED
                    break
                size = len(frame)
                self._in_flight_sizes.append(size)
                self._in_flight_bytes += size
                held_bytes = session.receive(frame, received_ns)
                if self._phase is _CLOSED:
                    return
                if held_bytes > size and session.in_flight:
                    # A decoded request takes more than its frame, and this one may wait for long.
                    self._in_flight_sizes[-1] = held_bytes
                    self._in_flight_bytes += held_bytes - size
                handled += 1
                if now_ns() - began_ns > TURN_NS_MAX:
                    break
        except InvalidFrame as error:
            self.close(str(error))
            return
        except Exception:
            # This is a bug of ours and not the client's fault. An open connection would leave the client waiting for a response
            # forever.
            _log.exception("a request from %s failed outside of its handler", self.peer)
            self.close("internal error")
            return
        if handled:
            self._after_requests()
            ended_ns = now_ns()
            if ended_ns - began_ns > SLOW_TURN_NS_MIN and penalty.impose(began_ns, ended_ns, self.peer, self._end_penalty):
                event = _WAS_SLOW
        state = _READ_TRANSITIONS[self._read_state][event]
        if state is not self._read_state:
            self._enter_read_state(state)
        if not self._is_flush_queued or state is _BACKLOGGED:
            # Otherwise the flush that follows does the same, before anything is read.
            self._update_counts()
            self._update_reading()

    def _after_requests(self) -> None:
        reactor = self._reactor
        reactor.wake()
        if self._phase is _HANDSHAKE:
            self._phase = Phase.OPEN
            self._frames.raise_size_max(reactor.limits.frame_bytes_max)
        if self._frames.buffer_size > BUFFER_SIZE:
            reactor.memory.frame_is_whole(self)
            # A large buffer is kept for the next large frame, unless others need the memory more.
            if reactor.memory.is_tight and not self._frames.is_inside_frame:
                self._frames.release()

    def _update_counts(self) -> None:
        """Count what is in flight and what is held in memory."""
        sizes = self._in_flight_sizes
        answered = len(sizes) - self._session.in_flight
        while answered > 0:
            self._in_flight_bytes -= sizes.popleft()
            answered -= 1
        # All three are usually zero.
        held = self._in_flight_bytes + self._send_queue.memory_bytes + self._frames.buffer_size - BUFFER_SIZE
        if held != self._held_bytes:
            delta = held - self._held_bytes
            self._held_bytes = held
            self._reactor.memory.change(delta)
        if not sizes:
            # Also if it holds as much as before: it may have the next frame already.
            self._reactor.memory.all_answered(self)

    def _may_read(self) -> bool:
        limits = self._reactor.limits
        if (
            self._phase is _DRAINING
            or self._send_queue.unsent_bytes >= limits.unsent_bytes_max
            or self._in_flight_bytes >= limits.in_flight_bytes_max
            or not self._session.wants_reading
        ):
            return False
        if not self._held_bytes:
            return True
        frames = self._frames
        is_inside_large_frame = frames.buffer_size > BUFFER_SIZE and frames.is_inside_frame
        return self._reactor.memory.may_grow(self, frames.frame_size if is_inside_large_frame else None)

    def _update_reading(self) -> None:
        state = _READ_TRANSITIONS[self._read_state][_ALLOWED if self._may_read() else _FORBIDDEN]
        if state is not self._read_state:
            self._enter_read_state(state)

    def _enter_read_state(self, state: ReadState) -> None:
        left, self._read_state = self._read_state, state
        loop = self._reactor.loop
        # The loop raises RuntimeError after a reset in this burst, which the watch reports next.
        if left is _READING:
            if self._phase is not _DRAINING:
                self._reactor.count_throttled_read()
            self._reactor.memory.reading_stopped(self, self._frames.missing_bytes)
            with suppress(RuntimeError):
                loop.remove_reader(self._descriptor)
        elif state is _READING:
            with suppress(RuntimeError):
                loop.add_reader(self._descriptor, self._readable)
        elif state is _SCHEDULED:
            loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        if self._phase < _DRAINING:
            self._enter_read_state(_READ_TRANSITIONS[self._read_state][_TURN_BEGAN])
            self._handle_frames()

    def _end_penalty(self) -> None:
        if self._phase is not _CLOSED:
            self._enter_read_state(_READ_TRANSITIONS[self._read_state][_PENALTY_OVER])
            self.resume()

    def resume(self) -> None:
        """Called when there is memory again, a quota's delay is over, or a request was answered without a response."""
        if self._phase is not _CLOSED:
            self._update_counts()
            self._update_reading()

    # Sending.

    def _send(self, response: list[ResponsePart]) -> None:
        if self._phase is _CLOSED:
            return
        if not self._send_queue.unsent_bytes:
            self._sent_at = self._reactor.loop.time()
            self._send_began_ns = self._reactor.now_ns()
        self._send_queue.put(response)
        if not self._is_flush_queued:
            self._is_flush_queued = True
            self._reactor.flush_after_burst(self)

    def flush(self) -> None:
        """Send what was queued in this burst. Responses that wait for the socket or the disk keep waiting."""
        self._is_flush_queued = False
        if self._phase is _CLOSED:
            return
        if self._send_state is _EMPTY:
            self._write()
        else:
            self._update_counts()
            self._update_reading()

    def _write(self) -> None:
        if self._phase is _CLOSED:
            return
        queue = self._send_queue
        before = queue.sent_bytes
        try:
            state = queue.send_some(self._socket)
        except (OSError, SliceCutShort) as error:
            self.close(getattr(error, "strerror", None) or str(error))
            return
        if queue.sent_bytes != before:
            self._sent_at = self._reactor.loop.time()
            if state is _EMPTY:
                self._reactor.send_ns.observe(self._reactor.now_ns() - self._send_began_ns)
        if state is not self._send_state:
            self._enter_send_state(state)
        self._update_counts()
        if self._phase is _DRAINING and self._is_idle():
            self.close(STOPPING)
            return
        self._update_reading()

    def _enter_send_state(self, state: SendState) -> None:
        left, self._send_state = self._send_state, state
        waited, waits = left in _WAITS_FOR_SOCKET, state in _WAITS_FOR_SOCKET
        # RuntimeError: see _enter_read_state.
        with suppress(RuntimeError):
            if waits and not waited:
                self._reactor.loop.add_writer(self._descriptor, self._write)
            elif waited and not waits:
                self._reactor.loop.remove_writer(self._descriptor)
        if state is _COLD:
            cold = self._send_queue.cold_range()
            self._reactor.read_ahead(cold, partial(self._on_read_ahead, cold))

    def _on_read_ahead(self, cold: LogSlice, completion: Completion) -> None:
        if self._phase is _CLOSED:
            return
        if completion.error is not None:
            self.close(f"cannot read {cold.file.path}: {completion.error}")
            return
        self._sent_at = self._reactor.loop.time()
        self._send_queue.warmed(cold)
        # Sending starts over: the next range may be cold as well.
        self._send_state = _EMPTY
        self._write()

    # Closing.

    def check(self, now: float) -> float | None:
        """Close the connection if a time limit has run out; otherwise return when the next one may."""
        if self._phase is _CLOSED:
            return None
        if not self._frames.is_inside_frame and now - self._received_at > LARGE_BUFFER_SECONDS_MAX:
            self._frames.release()
        # Requests without a response (acks=0) make room for more without any notification.
        self._update_counts()
        self._update_reading()
        limits = self._reactor.limits
        if self._phase is _HANDSHAKE:
            since, limit_ms, reason = self._opened_at, limits.handshake_ms_max, "no valid request after the connection"
        elif self._send_queue.unsent_bytes and self._send_state is not _COLD:
            since, limit_ms, reason = self._sent_at, limits.send_stall_ms_max, "the client does not read its responses"
        elif self._read_state is _READING and self._frames.is_inside_frame:
            late_since = self._reactor.memory.late_since(self)
            if late_since is not None and now >= late_since:
                self.close("the client is slow to send a frame for whose end others wait")
                return None
            since, limit_ms, reason = self._received_at, limits.frame_stall_ms_max, "the client stopped in the middle of a frame"
        elif not self._is_idle() or self._read_state not in (_READING, _PAUSED) or self._frames.is_inside_frame:
            # The client waits for the broker, maybe for memory in the middle of a frame.
            since, limit_ms, reason = now, limits.idle_ms_max, ""
        else:
            since, limit_ms, reason = max(self._received_at, self._sent_at), limits.idle_ms_max, "idle"
        deadline = since + limit_ms / 1000
        if now < deadline:
            return deadline
        self.close(f"{reason} for {limit_ms} ms")
        return None

    def drain(self) -> None:
        """Called when the broker is stopping: take no more requests, answer those in flight, then close."""
        if self._phase is _CLOSED:
            return
        self._phase = _DRAINING
        self._update_counts()
        if self._is_idle():
            self.close(STOPPING)
        else:
            self._update_reading()

    def _is_idle(self) -> bool:
        return not self._send_queue.unsent_bytes and not self._session.in_flight

    def close(self, reason: str) -> None:
        if self._phase is _CLOSED:
            return
        self._phase = _CLOSED
        loop = self._reactor.loop
        self._reactor.resets.forget(self._descriptor)
        # After a reset the first of the two raises RuntimeError, because there is nothing left to poll for the second.
        if self._read_state is _READING:
            with suppress(RuntimeError):
                loop.remove_reader(self._descriptor)
        if self._send_state in _WAITS_FOR_SOCKET:
            with suppress(RuntimeError):
                loop.remove_writer(self._descriptor)
        self._read_state, self._send_state = _PAUSED, _EMPTY
        self._socket.close()
        # Free everything now, because timers and requests in progress may hold a reference for long.
        self._send_queue.clear()
        self._frames.discard()
        self._session.closed()
        self._reactor.memory.change(-self._held_bytes)
        self._held_bytes = 0
        self._reactor.closed(self, reason)
