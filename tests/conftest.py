"""For all tests."""

import gc
import os
import signal
from collections.abc import Mapping

import pytest
from hypothesis import settings

from tests import minutes, scheduling, toolkit_broker

pytest_configure = minutes.pytest_configure
pytest_xdist_make_scheduler = scheduling.pytest_xdist_make_scheduler
# What the toolkit's tests talk to; on Apache Kafka there is no broker of ours unless a test starts it.
kafka = toolkit_broker.kafka
if toolkit_broker.IS_ON_KAFKA:
    tidelog_broker = toolkit_broker.tidelog_broker


@pytest.fixture(scope="session")
def tidelog_configs() -> Mapping[str, object]:
    return toolkit_broker.CONFIGS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what happens now into the text traces of tests/raft")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if toolkit_broker.IS_ON_KAFKA:
        for item in items:
            if item.get_closest_marker("tidelog_only"):
                item.add_marker(pytest.mark.skip(reason="its broker is Tidelog itself"))
    items.sort(key=lambda item: scheduling.is_last(item.nodeid))


def pytest_collection_finish() -> None:
    """Ten thousand tests and their modules are there to the end: to look for garbage among them is lost time, again and again."""
    gc.collect()
    gc.freeze()


# How long an example takes says how busy the machine is. What must be fast is measured in bench/.
settings.register_profile("tidelog", deadline=None)
settings.load_profile("tidelog")

# Spark's Java lives for seconds where a test kills it, and for minutes at most: to compile for a long life, and to collect
# garbage beside the work, is nearly half of its processor time then. Drivers that tests start as processes inherit this.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A shell's background jobs are started with interrupts ignored, and hand that on to the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
