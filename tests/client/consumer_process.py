"""What is killed: a process that reads. ``python -m tests.client.consumer_process KIND BOOTSTRAP TOPIC ...``

``consume GROUP GUARANTEE``: prints ``PARTITION OFFSET`` of each message that it handles, and commits as the guarantee says.
``table PATH``: follows the topic as a table in a SQLite file, and prints its number of rows when it is ready. Both go on until
killed.
"""

import os
import random
import sys
import threading

from tidelog.client.consumer import Consumer
from tidelog.client.table import Table


def consume(bootstrap: str, topic: str, group: str, guarantee: str) -> None:
    config = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 100, "max.poll.interval.ms": 10_000}
    with Consumer(bootstrap, group=group, topics=[topic], guarantee=guarantee, config=config) as consumer:
        while True:
            for message in consumer.poll(random.randint(1, 50), timeout=0.2):
                # One write per line: a kill leaves whole lines.
                os.write(1, f"{message.partition} {message.offset}\n".encode())
            if guarantee == "at-least-once":
                consumer.commit()


def table(bootstrap: str, topic: str, path: str) -> None:
    with Table(topic, bootstrap=bootstrap, storage=f"sqlite:{path}", check_interval=0.1) as rows:
        rows.wait_ready()
        os.write(1, f"{len(rows)}\n".encode())
        threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "consume":
        consume(*sys.argv[2:])
    else:
        table(*sys.argv[2:])
