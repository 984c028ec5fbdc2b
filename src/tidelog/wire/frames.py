"""Splits a stream of bytes into frames, without doing any I/O. A frame is a 32-bit size and that many bytes.

The caller receives straight into ``writable()``, reports the number of bytes to ``received()``, and calls ``next_frame()`` until
it returns None. A frame is a read-only view of the one buffer: it is valid until the next ``writable()`` or ``release()``,
and whoever keeps bytes longer copies them.

The buffer has a region of unread bytes, ``[_start, _end)``, which moves to the front only when the room behind it is used up, so
a stream of small requests is hardly ever copied. For a frame that does not fit, the buffer grows, but never to what the peer
merely claims: it at most doubles what has arrived. It stays large while large frames arrive and shrinks after some small ones.

The size is checked against the limit before anything else. After an error the stream cannot be read any further, and the caller
must close the connection.
"""

import struct

# A few requests at once; thousands of idle connections each hold one.
BUFFER_SIZE = 16 * 1024
# The least room to receive into, so that a large frame does not arrive in tiny pieces.
WRITABLE_SIZE_MIN = 4 * 1024
# After this many small frames in a row the buffer shrinks.
SMALL_FRAMES_BEFORE_SHRINKING = 16
SIZE_FIELD_SIZE = 4

_unpack_size = struct.Struct(">i").unpack_from


class InvalidFrame(Exception):
    """The stream is not made of frames that we accept."""


class FrameTooLarge(InvalidFrame):
    pass


class NegativeFrameSize(InvalidFrame):
    pass


class FrameReader:
    __slots__ = ("_buffer", "_end", "_frame_size", "_readable", "_size_max", "_small_frames", "_start", "_writable")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._start = 0
        self._end = 0
        # The size of the frame that is being received; None while it is not known.
        self._frame_size: int | None = None
        self._small_frames = 0
        self._buffer = bytearray()
        self._writable = self._readable = memoryview(self._buffer)
        self._replace_buffer(BUFFER_SIZE)

    def raise_size_max(self, size_max: int) -> None:
        """Raise the limit: a client that has sent a valid request may send larger frames than a stranger."""
        self._size_max = size_max

    @property
    def buffer_size(self) -> int:
        return len(self._buffer)

    @property
    def is_inside_frame(self) -> bool:
        """Whether part of a frame has arrived and the rest has not. If the stream ends now, it was cut off."""
        return self._end > self._start or self._frame_size is not None

    @property
    def frame_size(self) -> int:
        """The size of the frame that is being received; 0 while it is not known."""
        return self._frame_size or 0

    @property
    def missing_bytes(self) -> int:
        """How much of the frame has not arrived; 0 if it is whole, or its size is not known."""
        return max(0, (self._frame_size or 0) - (self._end - self._start))

    def writable(self) -> memoryview:
        """Return the buffer to receive into, which is never empty. Call it after ``next_frame`` returned None."""
        if self._end == self._start:
            self._start = self._end = 0
        if self._small_frames >= SMALL_FRAMES_BEFORE_SHRINKING and len(self._buffer) > BUFFER_SIZE:
            self._shrink()
        if len(self._buffer) - self._end < WRITABLE_SIZE_MIN:
            self._make_room()
        return self._writable[self._end :]

    def received(self, length: int) -> None:
        assert 0 <= length <= len(self._buffer) - self._end, "more received than there was room"
        self._end += length

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame, without its size; None when more bytes are needed. Raises InvalidFrame."""
        size = self._frame_size
        start = self._start
        if size is None:
            if self._end - start < SIZE_FIELD_SIZE:
                return None
            (size,) = _unpack_size(self._buffer, start)
            if not 0 <= size <= self._size_max:
                self._refuse(size)
            start += SIZE_FIELD_SIZE
            self._start = start
            self._frame_size = size
        end = start + size
        if end > self._end:
            return None
        self._start = end
        self._frame_size = None
        self._small_frames = 0 if size > BUFFER_SIZE else self._small_frames + 1
        return self._readable[start:end]

    def release(self) -> None:
        """Shrink the buffer. Call it when no frame is in use and none is expected soon."""
        if len(self._buffer) > BUFFER_SIZE:
            self._shrink()

    def discard(self) -> None:
        """Free the memory after the end of the stream. A frame that is still in use stays valid."""
        self._start = self._end = 0
        self._frame_size = None
        self._buffer = bytearray()
        self._writable = self._readable = memoryview(self._buffer)

    def _refuse(self, size: int) -> None:
        if size < 0:
            raise NegativeFrameSize(f"a frame of {size} bytes")
        raise FrameTooLarge(f"a frame of {size} bytes, at most {self._size_max} are accepted")

    def _make_room(self) -> None:
        if self._start:
            unread = self._end - self._start
            self._writable[:unread] = self._writable[self._start : self._end]
            self._start = 0
            self._end = unread
        size = len(self._buffer)
        frame_size = self._frame_size or 0
        if size - self._end < WRITABLE_SIZE_MIN and frame_size > size:
            self._replace_buffer(min(2 * size, frame_size + WRITABLE_SIZE_MIN))
        assert self._end < len(self._buffer), "whole frames are waiting to be taken"

    def _shrink(self) -> None:
        if self._end - self._start + WRITABLE_SIZE_MIN <= BUFFER_SIZE:
            self._replace_buffer(BUFFER_SIZE)

    def _replace_buffer(self, size: int) -> None:
        buffer = bytearray(size)
        unread = self._end - self._start
        buffer[:unread] = self._writable[self._start : self._end]
        self._buffer = buffer
        self._writable = memoryview(buffer)
        self._readable = self._writable.toreadonly()
        self._start = 0
        self._end = unread
