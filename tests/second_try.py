"""Runs all tests, and those that failed once more by themselves when nothing else runs.

    python -m tests.second_try -n 3          the arguments are pytest's

Many tests kill, pause and cut off real processes. Beside two other test processes on two cores, a client that nobody scheduled
for seconds can fail in a way that its test did not foresee. Such a test is a bug, and its failure is printed in full, but it
must not hide what the rest of the run says. More than a few failures are no coincidence and are not tried again.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# A change that breaks something usually breaks more tests than that, and breaks them every time.
AGAIN_MAX = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1


def run(arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    LAST_FAILED.unlink(missing_ok=True)
    status = run(arguments)
    if status != TESTS_FAILED or not LAST_FAILED.exists():
        return status
    failed = sorted(json.loads(LAST_FAILED.read_text()))
    if len(failed) > AGAIN_MAX:
        print(f"{len(failed)} tests failed: too many to be tried again.")
        return status
    print(f"{len(failed)} failed beside the others, and are tried again alone. One that passes only then is a bug to be mended:")
    print("\n".join(f"    {name}" for name in failed), flush=True)
    return run(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
