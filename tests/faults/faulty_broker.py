"""A broker in its own process whose disk has faults, or keeps a journal of its syncs."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.faults.faulty_disk import DiskFaults, FaultyDisk
from tests.faults.power_cut import PowerCutPlace, SyncJournal
from tidelog.testing import Broker
from tidelog.testing.child import run

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.faults.faulty_broker import run_child; run_child()"


class FaultyBroker(Broker):
    def __init__(
        self,
        persist: Path,
        configs: Mapping[str, object],
        faults: DiskFaults | None = None,
        power_cut: PowerCutPlace | None = None,
    ) -> None:
        super().__init__(persist=persist, configs=configs)
        self._wishes = {
            "faults": asdict(faults or DiskFaults()),
            "power_cut": str(power_cut.base) if power_cut is not None else None,
        }

    def _command(self, settings: Mapping[str, str]) -> list[str]:
        return [sys.executable, "-P", "-c", PROGRAM, json.dumps(settings), str(os.getpid()), json.dumps(self._wishes)]


def run_child() -> None:
    """In the broker's process."""
    wishes = json.loads(sys.argv[3])
    journal = SyncJournal(PowerCutPlace(Path(wishes["power_cut"]))) if wishes["power_cut"] is not None else None
    run(FaultyDisk(DiskFaults(**wishes["faults"]), journal.begin if journal is not None else None))
