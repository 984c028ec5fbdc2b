"""Choosing keys: what a key decides, seen on a topic. ``python examples/choosing_keys.py [HOST:PORT]``

The page that goes with it: docs/guides/choosing-keys.md.
"""

import secrets
import sys
from collections import Counter, defaultdict

from tidelog import Admin, Consumer, Producer
from tidelog.client.partitioners import murmur2_partition

PARTITIONS = 6


def main(bootstrap: str) -> None:
    topic = f"orders-{secrets.token_hex(4)}"
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=PARTITIONS)
        send_orders(bootstrap, topic)
        show_order_per_key(bootstrap, topic)
        show_what_more_partitions_do()
        admin.delete_topic(topic)


def send_orders(bootstrap: str, topic: str) -> None:
    """The customer is the key: what happens to one customer stays in order, customers are handled side by side."""
    with Producer(bootstrap) as producer:
        for step in ("placed", "paid", "packed", "shipped"):
            for customer in range(100):
                producer.send(topic, {"customer": customer, "step": step}, key=f"customer-{customer}")
        # No key, no order: for messages that have nothing to do with each other.
        for _ in range(100):
            producer.send(topic, {"heartbeat": True})


def show_order_per_key(bootstrap: str, topic: str) -> None:
    steps: dict[str, list[str]] = defaultdict(list)
    partitions: dict[str, set[int]] = defaultdict(set)
    load: Counter[int] = Counter()
    with Consumer(bootstrap, topics=[topic]) as consumer:
        seen = 0
        while seen < 500:
            for message in consumer.poll(timeout=10):
                seen += 1
                load[message.partition] += 1
                if message.key is not None:
                    customer = message.key.decode()
                    steps[customer].append(message.json()["step"])
                    partitions[customer].add(message.partition)
    in_order = sum(found == ["placed", "paid", "packed", "shipped"] for found in steps.values())
    print(f"{in_order} of {len(steps)} customers: every step in order")
    print(f"{sum(len(found) == 1 for found in partitions.values())} of {len(partitions)} customers: one partition each")
    print(f"messages by partition: {', '.join(str(load[number]) for number in range(PARTITIONS))}")


def show_what_more_partitions_do() -> None:
    """Where a key goes depends on the number of partitions: adding some moves keys, and order across the move is lost."""
    keys = [f"customer-{number}".encode() for number in range(1000)]
    moved = sum(murmur2_partition(key, PARTITIONS) != murmur2_partition(key, PARTITIONS * 2) for key in keys)
    print(f"with {PARTITIONS * 2} partitions instead of {PARTITIONS}, {moved / len(keys):.0%} of the keys go elsewhere")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
