"""Tables from compacted topics: customers as a dictionary that follows its topic. ``python examples/tables.py [HOST:PORT]``

The page that goes with it: docs/guides/tables.md.
"""

import secrets
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tidelog import Admin, Producer, Table

SECONDS_MAX = 60


def main(bootstrap: str) -> None:
    topic = f"customers-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer, tempfile.TemporaryDirectory() as directory:
        admin.create_topic(topic, partitions=3, cleanup_policy="compact")
        for number in range(1_000):
            producer.send(topic, {"name": f"Customer {number}", "city": "Delft"}, key=f"customer-{number}")
        producer.send(topic, {"name": "Ada", "city": "Utrecht"}, key="customer-42")
        producer.send(topic, None, key="customer-13")  # a tombstone: the row goes
        producer.flush()
        in_memory(bootstrap, topic, producer)
        in_a_file(bootstrap, topic, producer, Path(directory) / "customers.db")
        admin.delete_topic(topic)


def in_memory(bootstrap: str, topic: str, producer: Producer) -> None:
    with Table(topic, bootstrap=bootstrap, values="json") as customers:
        customers.wait_ready(SECONDS_MAX)
        print(f"{len(customers)} customers; 42 is {customers['customer-42']['name']}; 13 is there: {'customer-13' in customers}")
        changed = threading.Event()

        @customers.on_change
        def moved(key: str, customer: Any) -> None:
            print(f"{key} moved to {customer['city']}")
            changed.set()

        producer.send(topic, {"name": "Ada", "city": "Leiden"}, key="customer-42")
        producer.flush()
        changed.wait(SECONDS_MAX)


def in_a_file(bootstrap: str, topic: str, producer: Producer, path: Path) -> None:
    """After a restart only what has changed is read: the file has the rows, and beside them how far they were read."""
    with Table(topic, bootstrap=bootstrap, values="json", storage=f"sqlite:{path}") as customers:
        customers.wait_ready(SECONDS_MAX)
        before = sum(customers.positions().values())
    producer.send(topic, {"name": "Grace", "city": "Gouda"}, key="customer-7")
    producer.flush()
    with Table(topic, bootstrap=bootstrap, values="json", storage=f"sqlite:{path}") as customers:
        customers.wait_ready(SECONDS_MAX)
        read = sum(customers.positions().values()) - before
        print(f"after a restart: {len(customers)} customers, 7 is {customers['customer-7']['name']}, {read} message read")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
