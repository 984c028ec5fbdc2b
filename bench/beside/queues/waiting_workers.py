"""Workers that wait for jobs and never get any, in a process of their own: so many for each of the queues, a thread for each.

It prints ``ready`` when all of them wait, and ends when its standard input does.
"""

import os
import sys
import threading
import time

from tidelog import Queue

WAIT_SECONDS = 3_600.0
FIRST_WAIT_SECONDS = 0.5
STACK_BYTES = 256 << 10


def main() -> None:
    bootstrap, workers, *names = sys.argv[1:]
    # A thousand threads are to fit into an address space.
    threading.stack_size(STACK_BYTES)
    waiting = threading.Semaphore(0)

    def work(name: str) -> None:
        queue = Queue(bootstrap, name)
        queue.receive(1, FIRST_WAIT_SECONDS)
        waiting.release()
        queue.receive(1, WAIT_SECONDS)

    count = 0
    for name in names:
        for _ in range(int(workers)):
            threading.Thread(target=work, args=(name,), daemon=True).start()
            count += 1
            # A worker opens connections and joins: a crowd of them at once would only time out.
            time.sleep(0.01)
    for _ in range(count):
        waiting.acquire()
    print("ready", flush=True)
    sys.stdin.read()
    # Threads that wait for an hour are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
