"""The progress of streaming queries, for Prometheus.

listener = ProgressListener()
spark.streams.addListener(listener)
listener.render()            # hand it out by whatever serves your metrics, or
ProgressListener(path)       # have it in a file after every batch, for node_exporter's textfile collector
"""

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from tidelog.spark.progress_metrics import ProgressMetrics

_FILE_MODE = 0o644


class ProgressListener(StreamingQueryListener):
    """Spark calls it from a thread of its own; ``render`` may come from any."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = Path(path) if path is not None else None
        self._metrics = ProgressMetrics()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - the name that Spark calls
        """Nothing is known of it yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - the name that Spark calls
        """What was said last is still so."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - the name that Spark calls
        self._metrics.record(json.loads(event.progress.json))
        self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - the name that Spark calls
        self._metrics.ended(str(event.id), failed=event.exception is not None)
        self._write()

    def render(self) -> bytes:
        """Prometheus' text format; its content type is ``tidelog.metrics.exposition.CONTENT_TYPE``."""
        return self._metrics.render()

    def _write(self) -> None:
        """Whole, or not at all: a scraper may read at any time."""
        if self._path is None:
            return
        handle, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(self.render())
        os.chmod(draft, _FILE_MODE)
        os.replace(draft, self._path)
