"""Brokers for tests: a real one in a fraction of a second, in a process (``Broker``) or in a thread (``ThreadBroker``), and a
cluster of several (``Cluster``).

    from tidelog.testing import Broker

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest installed, the fixtures ``tidelog_broker`` and ``tidelog_cluster`` are available without any setup; see
``tidelog.testing.pytest_plugin``. The classes are loaded on use, because pytest loads this package in every project, whether or
not it needs a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker
    from tidelog.testing.cluster import Cluster
    from tidelog.testing.environment import BrokerFailed
    from tidelog.testing.thread_broker import ThreadBroker

__all__ = ["Broker", "BrokerFailed", "Cluster", "ThreadBroker"]

_MODULES = {"Broker": "broker", "BrokerFailed": "environment", "Cluster": "cluster", "ThreadBroker": "thread_broker"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
