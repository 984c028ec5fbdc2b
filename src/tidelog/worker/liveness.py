"""Whether a worker is alive, for a supervisor: it polls, and no handler hangs beyond what was allowed.

``alive`` is for code in the same process. A supervisor outside looks at the age of ``liveness_file``, which is touched about
once a second for as long as ``alive`` holds. Waiting for a broker counts as alive: a restart would not help.
"""

import os
from pathlib import Path

TOUCH_MS = 1_000


class Liveness:
    __slots__ = ("_beat_ms", "_file", "_timeout_ms", "_touched_ms")

    def __init__(self, timeout: float, file: str | os.PathLike[str] | None) -> None:
        self._timeout_ms = timeout * 1000
        self._file = None if file is None else Path(file)
        self._beat_ms: int | None = None
        self._touched_ms: int | None = None

    def beat(self, now_ms: int, longest_running_ms: int) -> None:
        """The polling thread came by. ``longest_running_ms``: of the handlers."""
        if longest_running_ms >= self._timeout_ms:
            return
        self._beat_ms = now_ms
        if self._file is not None and (self._touched_ms is None or now_ms - self._touched_ms >= TOUCH_MS):
            self._file.touch()
            self._touched_ms = now_ms

    def end(self) -> None:
        """It does not run any more."""
        self._beat_ms = None

    def is_alive(self, now_ms: int) -> bool:
        return self._beat_ms is not None and now_ms - self._beat_ms < self._timeout_ms
