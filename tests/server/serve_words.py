"""Run as a process by test_process: serves words, prints its port, and on the way out that it stopped."""

import sys

from tests.server.harness import WordBroker
from tidelog.server.process import ServedPorts, ServeOptions, serve


def make_broker(ports: ServedPorts) -> WordBroker:
    broker = WordBroker()
    if "fail" in sys.argv:
        broker.start_error = RuntimeError("cannot start")
    assert ports.addresses[0][1] > 0
    return broker


if __name__ == "__main__":
    sys.exit(serve(make_broker, [("127.0.0.1", 0)], lambda server: print(server.addresses[0][1], flush=True), ServeOptions()))
