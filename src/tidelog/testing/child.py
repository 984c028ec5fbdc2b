"""The process of a ``testing.Broker``: ``python -m tidelog.testing.child SETTINGS PARENT`` with a JSON object and a process id.

It writes one JSON event per line to standard output: ``started`` when clients can connect, ``failed`` with the reason if they
never will. It ends with the thread that started it.

This is not ``tidelog start``, which loads the modules of the whole command line, and a test need not wait for those.
"""

import json
import logging
import os
import sys

from tidelog.config.types import InvalidSetting
from tidelog.log.errors import LogError
from tidelog.ports.child import end_with_parent
from tidelog.ports.clock import RealClock
from tidelog.ports.disk import Disk
from tidelog.server.event_log import EventLog, EventLogHandler, LogFormat
from tidelog.server.process import run_broker

EXIT_FAILED = 1


def main(settings: dict[str, str], disk: Disk | None = None) -> int:
    """Run a broker until it stops. ``disk`` may be one that fails on purpose."""
    events = EventLog(_write, RealClock(), LogFormat.JSON)
    logging.getLogger("tidelog").addHandler(EventLogHandler(events))
    try:
        code = run_broker(
            settings,
            report=events.report,
            on_serving=lambda serving: events.report("started", serving.facts()),
            may_be_insecure=True,
            disk=disk,
        )
    except (OSError, InvalidSetting, LogError) as error:
        events.report("failed", {"error": str(error)})
        return EXIT_FAILED
    events.report("stopped", {"is_clean": code == 0})
    return code


def _write(line: str) -> None:
    """Write in one call, so that lines of several threads do not mix."""
    os.write(sys.stdout.fileno(), line.encode())


def run(disk: Disk | None = None) -> None:
    """Run the whole process. Its arguments are the settings and the process id of its parent."""
    end_with_parent()
    if os.getppid() == int(sys.argv[2]):
        # Otherwise the parent ended before the kernel could watch it.
        sys.exit(main(json.loads(sys.argv[1]), disk))


if __name__ == "__main__":
    run()
