"""Encoded Metadata responses, kept until the image changes.

Most clients ask for one topic or for all, again and again, and the same bytes answer them. A few distinct questions make up the
load; a client that asks for thousands of different ones only empties the cache.
"""

from collections.abc import Hashable

from tidelog.metadata.image import ClusterImage

ENTRIES_MAX = 1024
BYTES_MAX = 16 << 20


class MetadataCache:
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
        """An answer made from the image as it is now."""
        if len(self._bodies) >= ENTRIES_MAX or self._bytes + len(body) > BYTES_MAX:
            self._clear()
        if len(body) <= BYTES_MAX:
            self._bodies[question] = body
            self._bytes += len(body)

    def _clear(self) -> None:
        self._version = self._image.version
        self._bodies = {}
        self._bytes = 0
