"""The fixtures of tests that have letters on a broker."""

import pytest

from tests.deadletters.letters import Letters
from tests.toolkit_broker import ToolkitBroker
from tidelog.deadletters import DeadLetters


@pytest.fixture
def letters(kafka: ToolkitBroker) -> Letters:
    """A dead-letter topic with two partitions and nothing in it."""
    return Letters(kafka.bootstrap)


@pytest.fixture(scope="session")
def dead_letters(kafka: ToolkitBroker) -> DeadLetters:
    return DeadLetters(kafka.bootstrap)
