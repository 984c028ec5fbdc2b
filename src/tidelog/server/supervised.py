"""A broker in a process of its own that another process of ours watches: ``python -m tidelog.server.supervised SETTINGS PARENT``.

The settings are a JSON object, and the parent is a process id. One line of JSON on standard output says how the start ended: the
facts of the start once clients can connect, or ``{"error": ...}``. Events go to standard error, one line of text each, where
nobody has to read along: a log that is not read must never hold up a broker.

The broker stops in order when the thread that started it ends, however that comes about.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tidelog.config.types import InvalidSetting
from tidelog.log.errors import LogError
from tidelog.ports.child import end_with_parent
from tidelog.ports.clock import RealClock
from tidelog.raft.errors import QuorumError
from tidelog.server.event_log import EventLog, EventLogHandler, LogFormat
from tidelog.server.process import Serving, run_broker

EXIT_FAILED = 1


def run_reporting(
    settings: Mapping[str, str],
    events: EventLog,
    *,
    on_serving: Callable[[Serving], None],
    on_failed: Callable[[str], None],
    may_be_insecure: bool = False,
    **ports: Any,
) -> int:
    """Run a broker until it stops, with everything that it has to say in ``events``. ``on_failed`` gets the reason if it never
    serves. ``ports`` are those of ``run_broker`` that tests replace."""
    logging.getLogger("tidelog").addHandler(EventLogHandler(events))
    try:
        code = run_broker(settings, report=events.report, on_serving=on_serving, may_be_insecure=may_be_insecure, **ports)
    except (OSError, InvalidSetting, LogError, QuorumError) as error:
        on_failed(str(error))
        return EXIT_FAILED
    events.report("stopped", {"is_clean": code == 0})
    return code


def write_line(descriptor: int, line: str) -> None:
    """Write in one call, so that lines of several threads do not mix."""
    os.write(descriptor, line.encode())


def main(settings: Mapping[str, str]) -> int:
    output, log = sys.stdout.fileno(), sys.stderr.fileno()
    events = EventLog(lambda line: write_line(log, line), RealClock(), LogFormat.TEXT)

    def serving(serving: Serving) -> None:
        events.report("started", serving.facts())
        write_line(output, json.dumps(serving.facts(), default=str) + "\n")

    def failed(reason: str) -> None:
        events.report("failed", {"error": reason})
        write_line(output, json.dumps({"error": reason}) + "\n")

    return run_reporting(settings, events, on_serving=serving, on_failed=failed)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM)
    if os.getppid() == int(sys.argv[2]):
        # Otherwise the parent ended before the kernel could watch it.
        sys.exit(main(json.loads(sys.argv[1])))
