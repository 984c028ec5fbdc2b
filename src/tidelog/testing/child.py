"""The process of a ``testing.Broker``: ``python -m tidelog.testing.child SETTINGS PARENT`` with a JSON object and a process id.
A node of a ``testing.Cluster`` gets a third argument, the port of the proxy that it dials other nodes through.

It writes one JSON event per line to standard output: ``started`` when clients can connect, ``failed`` with the reason if they
never will. It ends with the thread that started it.

This is not ``tidelog start``, which loads the modules of the whole command line, and a test need not wait for those.
"""

import json
import os
import sys

from tidelog.ports.child import end_with_parent
from tidelog.ports.clock import RealClock
from tidelog.ports.disk import Disk
from tidelog.ports.network import Network
from tidelog.server.event_log import EventLog, LogFormat
from tidelog.server.supervised import run_reporting, write_line
from tidelog.testing.links import LinkedNetwork


def main(settings: dict[str, str], disk: Disk | None = None, proxy_port: int | None = None) -> int:
    """Run a broker until it stops. ``disk`` may be one that fails on purpose."""

    def linked(network: Network) -> Network:
        return network if proxy_port is None else LinkedNetwork(network, int(settings["node.id"]), proxy_port)

    output = sys.stdout.fileno()
    events = EventLog(lambda line: write_line(output, line), RealClock(), LogFormat.JSON)
    return run_reporting(
        settings,
        events,
        on_serving=lambda serving: events.report("started", serving.facts()),
        on_failed=lambda reason: events.report("failed", {"error": reason}),
        may_be_insecure=True,
        disk=disk,
        wrap_network=linked,
    )


def run(disk: Disk | None = None, proxy_port: int | None = None) -> None:
    """Run the whole process. Its arguments are the settings and the process id of its parent."""
    end_with_parent()
    if os.getppid() == int(sys.argv[2]):
        # Otherwise the parent ended before the kernel could watch it.
        sys.exit(main(json.loads(sys.argv[1]), disk, proxy_port))


if __name__ == "__main__":
    # A node of a cluster has a third argument, the port of the proxy between the nodes.
    run(proxy_port=int(sys.argv[3]) if len(sys.argv) > 3 else None)
