"""What the experiment asks of a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench.plug.ledger import Holds, Ledger


class PowerCutSubject(Protocol):
    """One server over all its lives. Its data is below ``path``, which is another disk in each life, under the same name."""

    name: str
    promise: str
    """What its acknowledgement is worth at these settings."""

    def prepare(self, path: Path) -> None:
        """Whatever an installation does before a start: ports, settings. Its time does not count."""

    def start(self) -> None:
        """Start the process; it may return before the server answers."""

    def install(self) -> None:
        """Once, on an empty disk: create the topics or streams that the clients use."""

    def wait_until_it_serves(self) -> None:
        """Return when it has acknowledged a message."""

    def begin_load(self, ledger: Ledger) -> None:
        """Clients work, each on a thread of its own, and note what is acknowledged."""

    def end_load(self) -> None:
        """The clients end. The server may be dead already."""

    def kill(self) -> None: ...

    def holdings(self, ledger: Ledger) -> Mapping[str, Holds]:
        """What it still has, asked through its own clients."""
