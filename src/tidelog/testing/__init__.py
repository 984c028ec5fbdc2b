"""Brokers for tests: a real one in a fraction of a second, in a process (``Broker``) or in a thread (``ThreadBroker``).

    from tidelog.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest installed the fixture ``tidelog_broker`` is there by itself; see ``tidelog.testing.pytest_plugin``.
"""

from tidelog.testing.broker import Broker
from tidelog.testing.place import BrokerFailed
from tidelog.testing.thread_broker import ThreadBroker

__all__ = ["Broker", "BrokerFailed", "ThreadBroker"]
