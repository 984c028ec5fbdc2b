"""One client's socket: bytes in, frames to the session; responses out.

Reading. What arrives goes straight into the frame reader's buffer, and whole frames to the session, at most
``FRAMES_PER_TURN``, or for ``TURN_NS_MAX``, before the other connections have their turn. Reading stops while the session wants
no more, while too much of the client's is unanswered or unsent, or while all connections together hold too much; frames that had
arrived already wait in the buffer (``_has_backlog``). It goes on when something was answered or sent. After a turn that held the
loop for long it stops for a while (``loop_share``).

Writing. A response is put into the outbox and the connection on the loop's list of those with something to send; the loop
flushes them all when the burst is over, so that pipelined answers share a system call. What the socket does not take at once
is sent when it is writable. A cold slice pauses the writing until a helper thread has read it.

A connection ends by ``end``, once, whoever wants it. After that ``_socket`` is None and every callback returns at once.
"""

import logging
import socket
from collections import deque
from contextlib import suppress
from functools import partial

from tidelog.log.reading import LogSlice
from tidelog.ports.executor import Completion
from tidelog.server.cold_reads import read_ahead
from tidelog.server.hub import Hub
from tidelog.server.loop_share import HOG_NS_MIN
from tidelog.server.outbox import Outbox, Outcome, SliceCutShort
from tidelog.server.served import Part
from tidelog.wire.frames import BUFFER_SIZE, FrameReader, InvalidFrame

# A few hundred microseconds of work.
FRAMES_PER_TURN = 32
# Requests that are not as cheap: as long as any other work on the loop.
TURN_NS_MAX = 5_000_000
# After so long without a byte a large receive buffer is given back.
LARGE_BUFFER_SECONDS_MAX = 5.0

CLOSED_BY_CLIENT = "closed by the client"
_log = logging.getLogger(__name__)


class Connection:
    __slots__ = (
        "_descriptor",
        "_frames",
        "_has_backlog",
        "_held_bytes",
        "_hub",
        "_in_flight_bytes",
        "_in_flight_sizes",
        "_is_continuing",
        "_is_dirty",
        "_is_draining",
        "_is_reading",
        "_is_reading_ahead",
        "_is_resting",
        "_is_trusted",
        "_is_writing",
        "_opened_at",
        "_outbox",
        "_received_at",
        "_send_began_ns",
        "_sent_at",
        "_session",
        "_socket",
        "host",
        "peer",
    )

    def __init__(self, hub: Hub, accepted: socket.socket, host: str, port: int) -> None:
        self._hub = hub
        self._socket: socket.socket | None = accepted
        self._descriptor = accepted.fileno()
        self.host = host
        self.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._frames = FrameReader(hub.limits.first_frame_bytes_max)
        self._outbox = Outbox()
        # Sizes of the requests that the session has not answered, oldest first: it answers them in this order.
        self._in_flight_sizes: deque[int] = deque()
        self._in_flight_bytes = 0
        # As the shared memory knows it.
        self._held_bytes = 0
        self._has_backlog = False
        self._is_trusted = False
        self._is_reading = False
        self._is_continuing = False
        self._is_writing = False
        self._is_reading_ahead = False
        self._is_resting = False
        self._is_dirty = False
        self._is_draining = False
        self._send_began_ns = 0
        self._opened_at = self._received_at = self._sent_at = hub.loop.time()
        accepted.setblocking(False)
        # Responses are whole when they are sent: waiting for more to fill a segment only adds delay.
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = hub.broker.session(host, self._send, self.end, self.resume)
        hub.opened(self)
        hub.resets.watch(accepted, self.end)
        self._update_reading()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def unsent_bytes(self) -> int:
        return self._outbox.unsent_bytes

    # Reading.

    def _readable(self) -> None:
        if self._socket is None:
            return
        frames = self._frames
        try:
            length = self._socket.recv_into(frames.writable())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        if not length:
            self.end(f"{CLOSED_BY_CLIENT} in the middle of a frame" if frames.is_inside_frame else CLOSED_BY_CLIENT)
            return
        frames.received(length)
        hub = self._hub
        self._received_at = hub.loop.time()
        self._session.received_ns = hub.now_ns()
        hub.received_bytes += length
        self._handle_frames()

    def _handle_frames(self) -> None:
        session, frames, limits = self._session, self._frames, self._hub.limits
        handled = 0
        self._has_backlog = True
        now_ns = self._hub.now_ns
        began_ns = now_ns()
        try:
            while (
                handled < FRAMES_PER_TURN
                and session.wants_reading
                and self._in_flight_bytes < limits.in_flight_bytes_max
                and self._outbox.unsent_bytes < limits.unsent_bytes_max
            ):
                frame = frames.next_frame()
                if frame is None:
                    self._has_backlog = False
                    break
                self._in_flight_sizes.append(len(frame))
                self._in_flight_bytes += len(frame)
                session.receive(frame)
                if self._socket is None:
                    return
                handled += 1
                if now_ns() - began_ns > TURN_NS_MAX:
                    break
        except InvalidFrame as error:
            self.end(str(error))
            return
        except Exception:
            # Ours, not the client's; without this connection nobody would ever know what became of its request.
            _log.exception("a request of %s failed outside of its handler", self.peer)
            self.end("internal error")
            return
        if handled:
            self._after_requests(handled)
            ended_ns = now_ns()
            if ended_ns - began_ns > HOG_NS_MIN:
                self._is_resting = self._hub.share.rest(began_ns, ended_ns, self._rested)
        if not self._is_dirty or self._has_backlog:
            # Otherwise the flush that follows does the same, before anything is read.
            self._settle()
            self._update_reading()

    def _after_requests(self, handled: int) -> None:
        hub = self._hub
        hub.requests += handled
        hub.wake()
        if not self._is_trusted:
            self._is_trusted = True
            self._frames.size_max = hub.limits.frame_bytes_max
        if self._frames.buffer_size > BUFFER_SIZE:
            hub.memory.frame_done(self)
            # A large buffer is kept for the next large frame, unless others need the memory more.
            if hub.memory.is_tight and not self._frames.is_inside_frame:
                self._frames.release()

    def _settle(self) -> None:
        """Count again what is in flight and what is held."""
        sizes = self._in_flight_sizes
        answered = len(sizes) - self._session.in_flight
        while answered > 0:
            self._in_flight_bytes -= sizes.popleft()
            answered -= 1
        # All three are usually zero.
        held = self._in_flight_bytes + self._outbox.memory_bytes + self._frames.buffer_size - BUFFER_SIZE
        if held != self._held_bytes:
            delta = held - self._held_bytes
            self._held_bytes = held
            self._hub.memory.change(delta)

    def _may_read(self) -> bool:
        limits = self._hub.limits
        if (
            self._is_draining
            or self._is_resting
            or self._outbox.unsent_bytes >= limits.unsent_bytes_max
            or self._in_flight_bytes >= limits.in_flight_bytes_max
            or not self._session.wants_reading
        ):
            return False
        if not self._held_bytes:
            return True
        is_inside_large_frame = self._frames.buffer_size > BUFFER_SIZE and self._frames.is_inside_frame
        return self._hub.memory.may_grow(self, is_inside_large_frame)

    def _update_reading(self) -> None:
        may_read = self._may_read()
        if may_read and self._has_backlog and not self._is_continuing:
            self._is_continuing = True
            self._hub.loop.call_soon(self._continue)
        is_reading = may_read and not self._has_backlog
        if is_reading != self._is_reading:
            self._is_reading = is_reading
            loop = self._hub.loop
            self._hub.throttled_reads += not is_reading and not self._is_draining
            if not is_reading:
                self._hub.memory.frame_done(self)
            # RuntimeError: a reset of this turn, which the watch reports next.
            with suppress(RuntimeError):
                if is_reading:
                    loop.add_reader(self._descriptor, self._readable)
                else:
                    loop.remove_reader(self._descriptor)

    def _continue(self) -> None:
        self._is_continuing = False
        if self._socket is not None and self._has_backlog and not self._is_draining:
            self._handle_frames()

    def _rested(self) -> None:
        self._is_resting = False
        self.resume()

    def resume(self) -> None:
        """There is memory again, the time is over for which the client was held, or something was answered with nothing."""
        if self._socket is not None:
            self._settle()
            self._update_reading()

    # Writing.

    def _send(self, response: list[Part]) -> None:
        if self._socket is None:
            return
        if not self._outbox.unsent_bytes:
            self._sent_at = self._hub.loop.time()
            self._send_began_ns = self._hub.now_ns()
        self._outbox.put(response)
        if not self._is_dirty:
            self._is_dirty = True
            self._hub.add_dirty(self)

    def flush(self) -> None:
        """The burst is over. What waits for the socket or the disk goes on waiting."""
        self._is_dirty = False
        if self._socket is None:
            return
        if not self._is_writing and not self._is_reading_ahead:
            self._write()
        else:
            self._settle()
            self._update_reading()

    def _write(self) -> None:
        if self._socket is None:
            return
        outbox = self._outbox
        before = outbox.sent_bytes
        try:
            outcome = outbox.send_some(self._socket)
        except (OSError, SliceCutShort) as error:
            self.end(getattr(error, "strerror", None) or str(error))
            return
        if outbox.sent_bytes != before:
            self._sent_at = self._hub.loop.time()
            self._hub.sent_bytes += outbox.sent_bytes - before
            if outcome is Outcome.EMPTY:
                self._hub.send_ns.observe(self._hub.now_ns() - self._send_began_ns)
        is_writing = outcome is Outcome.FULL or outcome is Outcome.TURN_OVER
        if is_writing != self._is_writing:
            self._wait_to_write(is_writing)
        if outcome is Outcome.COLD:
            self._read_ahead(outbox.cold_range())
        self._settle()
        if self._is_draining and self._is_idle():
            self.end("the broker stops")
            return
        self._update_reading()

    def _wait_to_write(self, is_writing: bool) -> None:
        self._is_writing = is_writing
        loop = self._hub.loop
        # As for reading.
        with suppress(RuntimeError):
            if is_writing:
                loop.add_writer(self._descriptor, self._write)
            else:
                loop.remove_writer(self._descriptor)

    def _read_ahead(self, cold: LogSlice) -> None:
        self._is_reading_ahead = True
        self._hub.cold_reads += 1
        self._hub.executor.submit(partial(read_ahead, cold.file, cold.position, cold.length), partial(self._warmed, cold))

    def _warmed(self, cold: LogSlice, completion: Completion) -> None:
        self._is_reading_ahead = False
        if self._socket is None:
            return
        if completion.error is not None:
            self.end(f"cannot read {cold.file.path}: {completion.error}")
            return
        self._sent_at = self._hub.loop.time()
        self._outbox.warmed(cold)
        self._write()

    # Ending.

    def check(self, now: float) -> float | None:
        """When the next of its time limits may have run out; ends the connection if one has."""
        if self._socket is None:
            return None
        if not self._frames.is_inside_frame and now - self._received_at > LARGE_BUFFER_SECONDS_MAX:
            self._frames.release()
        # Answers that are no bytes (acks=0) free the way to read on without anybody telling.
        self._settle()
        self._update_reading()
        limits = self._hub.limits
        if not self._is_trusted:
            since, limit_ms, reason = self._opened_at, limits.handshake_ms_max, "no valid request after the connection"
        elif self._outbox.unsent_bytes and not self._is_reading_ahead:
            since, limit_ms, reason = self._sent_at, limits.send_stall_ms_max, "the client does not read its responses"
        elif self._is_reading and self._frames.is_inside_frame:
            since, limit_ms, reason = self._received_at, limits.frame_stall_ms_max, "the client stopped in the middle of a frame"
        elif not self._is_idle() or self._has_backlog:
            # It is the broker that lets the client wait.
            since, limit_ms, reason = now, limits.idle_ms_max, ""
        else:
            since, limit_ms, reason = max(self._received_at, self._sent_at), limits.idle_ms_max, "idle"
        deadline = since + limit_ms / 1000
        if now < deadline:
            return deadline
        self.end(f"{reason} for {limit_ms} ms")
        return None

    def drain(self) -> None:
        """The broker stops: take no more requests, answer those that are in flight, then end."""
        if self._socket is None:
            return
        self._is_draining = True
        self._settle()
        if self._is_idle():
            self.end("the broker stops")
        else:
            self._update_reading()

    def _is_idle(self) -> bool:
        return not self._outbox.unsent_bytes and not self._session.in_flight

    def end(self, reason: str) -> None:
        if self._socket is None:
            return
        loop = self._hub.loop
        self._hub.resets.forget(self._descriptor)
        # After a reset the first of two raises RuntimeError, as there is nothing to poll for the second any more.
        if self._is_reading:
            with suppress(RuntimeError):
                loop.remove_reader(self._descriptor)
        if self._is_writing:
            with suppress(RuntimeError):
                loop.remove_writer(self._descriptor)
        self._is_reading = self._is_writing = False
        self._socket.close()
        self._socket = None
        # Now, and not when the last reference goes: timers and requests under way may hold one for long.
        self._outbox.clear()
        self._frames.discard()
        self._session.closed()
        self._hub.memory.change(-self._held_bytes)
        self._held_bytes = 0
        self._hub.closed(self, reason)
