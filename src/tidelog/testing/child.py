"""The process of a ``testing.Broker``: ``python -m tidelog.testing.child SETTINGS PARENT``: a JSON object, and a process id.

It writes events as JSON, one a line, to standard output: ``started`` when clients can connect, ``failed`` with the reason when
that will not come about. It ends with the thread that started it.

Not ``tidelog start``: that loads a command line's worth of modules, which a test need not wait for.
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
    """``disk`` is one that fails on purpose."""
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
    """In one call, so that lines of threads do not mix."""
    os.write(sys.stdout.fileno(), line.encode())


def run(disk: Disk | None = None) -> None:
    """The process as a whole: its arguments are the settings and the process id of its parent."""
    end_with_parent()
    if os.getppid() == int(sys.argv[2]):
        # Else the parent ended before the kernel was asked to tell.
        sys.exit(main(json.loads(sys.argv[1]), disk))


if __name__ == "__main__":
    run()
