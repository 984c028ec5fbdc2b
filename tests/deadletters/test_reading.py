"""Reading letters takes the same memory however many there are."""

import subprocess
import sys

from tests.deadletters.letters import Letters

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


def test_long_stories_do_not_pile_up_in_memory(letters: Letters) -> None:
    letters.write_many(LETTERS, traceback="x" * STORY_BYTES)
    words = [sys.executable, "-c", COUNT_LETTERS, letters.bootstrap, letters.topic]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    count, growth_bytes = map(int, done.stdout.split())
    assert count == LETTERS
    assert growth_bytes < GROWTH_BYTES_MAX
