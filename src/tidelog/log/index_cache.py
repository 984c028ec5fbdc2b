"""The contents of index files that were used lately.

Ten thousand partitions have tens of thousands of index files, and most are never asked. An index loads its file on its first
lookup and leaves the bytes here; when the sum passes ``bytes_max``, those unused for longest are forgotten. Nothing
is written from here: the cache holds only what the files hold, and forgetting it costs a read.

Keyed by path. Whoever changes a file (append, truncate, rename, remove) says so, on the same thread.
"""

from collections import OrderedDict


class IndexCache:
    __slots__ = ("_contents", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._contents: OrderedDict[str, bytearray] = OrderedDict()

    def get(self, path: str) -> bytearray | None:
        content = self._contents.get(path)
        if content is not None:
            self._contents.move_to_end(path)
        return content

    def put(self, path: str, content: bytearray) -> None:
        """Keep ``content``, now the file's own. One larger than the whole cache is not kept."""
        self.discard(path)
        if len(content) <= self.bytes_max:
            self._contents[path] = content
            self.bytes_held += len(content)
            self._evict()

    def extend(self, path: str, data: bytes | bytearray) -> None:
        """``data`` was appended to the file; a file that is not held stays so."""
        content = self._contents.get(path)
        if content is not None:
            content += data
            self.bytes_held += len(data)
            self._evict()

    def discard(self, path: str) -> None:
        content = self._contents.pop(path, None)
        if content is not None:
            self.bytes_held -= len(content)

    def _evict(self) -> None:
        while self.bytes_held > self.bytes_max:
            _, content = self._contents.popitem(last=False)
            self.bytes_held -= len(content)
