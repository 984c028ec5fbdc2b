"""Every example runs as a user would run it, and prints what its page says.

``EXAMPLES`` is the table: the file under examples/, and patterns that its lines must match, in this order (others may be between
them). An example takes the bootstrap servers as its argument, makes topics of its own, and ends by itself.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolkit_broker import ToolkitBroker

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120

# Run by tests/docs/test_dial.py, because it starts a cluster of its own.
ELSEWHERE = ["acks.py"]
EXAMPLES: dict[str, list[str]] = {
    "choosing_keys.py": [
        r"100 of 100 customers: every step in order",
        r"100 of 100 customers: one partition each",
        r"messages by partition: \d+(, \d+){5}",
        r"with 12 partitions instead of 6, \d+% of the keys go elsewhere",
    ],
    "dead_letter_tools.py": [
        r"billed: 15",
        r"4 dead letters of group billing: __main__\.UnknownCurrency",
        r"1 dead letters of group billing: __main__\.TooOld",
        r"one of them: b'customer-\d+', 2 attempts, ISK of order \d+",
        r"discarded: 1",
        r"replayed: 4, and again: 0",
        r"billed: 4",
        r"left: 0",
    ],
    "delivery_guarantees.py": [
        r"at-least-once: died at 15, the group stands at 1?\d",
        r"at-least-once: 30 of 30 handled, \d+ of them again, 0 lost",
        r"at-most-once: died at 15, the group stands at (1[6-9]|2\d)",
        r"at-most-once: \d+ of 30 handled, 0 of them again, [1-9]\d* lost",
        r"exactly-once: 30 of 30 handled, 0 of them again, 0 lost",
    ],
    "hot_partitions.py": [
        r"views: the fullest partition has [6-7]\.\d times the mean",
        r"views: the fullest partition has 1\.\d times the mean",
        r"viral was seen 3,000 times; all counts are right: True",
    ],
    "priorities.py": [
        r"2,000 ordinary messages wait, and 100 urgent ones come",
        r"without weights the urgent ones are through after (1,\d{3}|2,\d{3}) messages",
        r"with weights of 9 to 1 they are through after [1-3]\d\d messages",
    ],
    "queues.py": [
        r"sent 12 jobs",
        r"two workers did 12 of 12 jobs, on one partition",
        r"photo-3 needed 2 deliveries",
        r"photo-7 was rejected",
        r"left: 0",
    ],
    "tables.py": [
        r"999 customers; 42 is Ada; 13 is there: False",
        r"customer-42 moved to Leiden",
        r"after a restart: 999 customers, 7 is Grace, 1 message read",
    ],
    "retries_and_dead_letters.py": [
        r"sent: 19, order 5 at the 3rd try, order 6 given up after 4 tries",
        r"4 of 4 customers got their emails in order",
        r"dead: LookupError after 4 attempts, version 1\.4\.2",
        r"dead: tidelog\.client\.errors\.SerializationError after 1 attempts, version 1\.4\.2",
    ],
    "tracing.py": [
        r"one trace: True",
        r"send orders-\w+ +under checkout",
        r"poll orders-\w+ +links to send orders-\w+",
        r"process orders-\w+ +attempt 1 +under send orders-\w+ +failed: LookupError",
        r"send orders-\w+\.email\.retry\.0 +under send orders-\w+",
        r"process orders-\w+ +attempt 2 +under send orders-\w+ +failed: LookupError",
        r"send orders-\w+\.email\.retry\.1 +under send orders-\w+",
        r"process orders-\w+ +attempt 3 +under send orders-\w+ +failed: LookupError",
        r"send orders-\w+\.email\.dlq +under send orders-\w+",
        r"send orders-\w+\.email\.retry\.0 +under send orders-\w+",
        r"process orders-\w+ +attempt 1 +under send orders-\w+",
        r"send receipts-\w+ +under process orders-\w+",
    ],
    "scaling_on_lag.py": [
        r"lag: 3,000",
        r"one worker handles about \d+ a second: [1-4] wanted to drain in 4 s",
        r"lag: 0, handled by [1-4] workers",
    ],
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_its_page_says(kafka: ToolkitBroker, name: str) -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), kafka.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    lines = iter(done.stdout.splitlines())
    missing = [pattern for pattern in EXAMPLES[name] if not any(re.fullmatch(pattern, line) for line in lines)]
    assert not missing, f"{missing} in: {done.stdout}"


def test_no_example_is_left_out() -> None:
    assert sorted([*EXAMPLES, *ELSEWHERE]) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def test_every_page_of_a_pattern_has_its_example() -> None:
    pages = sorted((ROOT / "docs" / "guides").glob("*.md"))
    assert pages
    for page in pages:
        named = re.findall(r"examples/([a-z0-9_]+\.py)", page.read_text())
        assert named, f"{page.name} names no example"
        assert [name for name in named if name not in EXAMPLES and name not in ELSEWHERE] == []
