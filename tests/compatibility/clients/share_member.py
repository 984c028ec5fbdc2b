"""A member of a share group in a process of its own: it takes records, says so, and never settles them. It ends when it is
killed."""

import sys
import time

from confluent_kafka import ShareConsumer


def main() -> None:
    bootstrap_servers, group, topic = sys.argv[1:]
    consumer = ShareConsumer({"bootstrap.servers": bootstrap_servers, "group.id": group, "log_level": 0})
    consumer.subscribe([topic])
    while not [message for message in consumer.poll(timeout=1.0) if message.error() is None]:
        pass
    print("holding", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
