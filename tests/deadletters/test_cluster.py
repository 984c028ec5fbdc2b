"""The cluster of the tools: which settings are accepted, and that reading takes bounded memory."""

import subprocess
import sys

import pytest

from tests.deadletters.letters import Letters
from tidelog.client.errors import InvalidArgument
from tidelog.deadletters import DeadLetters

LETTERS = 20_000
# Their stories together are 60 MB.
STORY_BYTES = 3000
GROWTH_BYTES_MAX = 40 << 20

# Whoever reads is slow at first: what is fetched ahead meanwhile must stay bounded.
COUNT_LETTERS = """
import resource, sys, time
from tidelog.deadletters import DeadLetters
letters = DeadLetters(sys.argv[1])
letters.topics()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = 0
for _ in letters.letters(sys.argv[2]):
    count += 1
    if count == 1:
        # Time to read ahead as far as it would: there is nothing to wait for, since it should stop.
        time.sleep(1)
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("name", ["bootstrap.servers", "isolation.level", "transactional.id", "group.id", "auto.offset.reset"])
def test_settings_that_would_break_a_promise_are_refused_at_once(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"config= must not have {name}"):
        DeadLetters("127.0.0.1:1", config={name: "x"})


@pytest.mark.parametrize("bootstrap", ["", [], ["a:1", ""]])
def test_addresses_that_are_not_valid(bootstrap: str) -> None:
    with pytest.raises(InvalidArgument, match="host:port"):
        DeadLetters(bootstrap)


def test_long_stories_do_not_pile_up_in_memory(letters: Letters) -> None:
    letters.write_many(LETTERS, traceback="x" * STORY_BYTES)
    words = [sys.executable, "-c", COUNT_LETTERS, letters.bootstrap, letters.topic]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    count, growth_bytes = map(int, done.stdout.split())
    assert count == LETTERS
    assert growth_bytes < GROWTH_BYTES_MAX
