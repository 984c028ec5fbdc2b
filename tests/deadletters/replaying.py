"""A replay in a process of its own, in small transactions, so that it can be killed between any two of them, and within.

python -m tests.deadletters.replaying BOOTSTRAP TOPIC LETTERS_PER_TRANSACTION
"""

import sys

from tidelog.client.errors import TidelogError
from tidelog.deadletters import DeadLetters, replay
from tidelog.ports.child import end_with_parent


def main() -> int:
    bootstrap, topic, batch_letters = sys.argv[1:]
    replay.BATCH_LETTERS = int(batch_letters)
    end_with_parent()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    try:
        DeadLetters(bootstrap).replay(topic)
    except TidelogError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
