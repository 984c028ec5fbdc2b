"""Delivery guarantees: what comes again, what is lost when a reader dies. ``python examples/delivery_guarantees.py [HOST:PORT]``

The page that goes with it: docs/guides/delivery-guarantees.md.
"""

import secrets
import sys

from tidelog import Admin, Consumer, Producer
from tidelog.client.errors import TidelogError

MESSAGES = 30
BATCH = 10
DIES_AT = 15


class Died(Exception):
    """Stands for a crash: whatever was in memory is gone."""


def main(bootstrap: str) -> None:
    suffix = secrets.token_hex(4)
    payments, receipts = f"payments-{suffix}", f"receipts-{suffix}"
    with Admin(bootstrap) as admin:
        admin.create_topic(payments)
        admin.create_topic(receipts)
        with Producer(bootstrap) as producer:
            for number in range(MESSAGES):
                producer.send(payments, str(number), key="account-1")
        at_least_once(bootstrap, payments)
        at_most_once(bootstrap, payments)
        exactly_once(bootstrap, payments, receipts, suffix)
        admin.delete_topic(payments)
        admin.delete_topic(receipts)


def at_least_once(bootstrap: str, topic: str) -> None:
    """Handle, then commit: what was handled and not committed comes again."""
    handled: list[int] = []
    for life in range(2):
        with Consumer(bootstrap, group=f"{topic}-at-least-once", topics=[topic]) as consumer:
            try:
                while len(set(handled)) < MESSAGES:
                    for message in consumer.poll(BATCH):
                        if life == 0 and message.offset == DIES_AT:
                            raise Died
                        handled.append(message.offset)
                    consumer.commit()
            except Died:
                print(f"at-least-once: died at {DIES_AT}, the group stands at {standing(consumer)}")
    tell("at-least-once", handled)


def at_most_once(bootstrap: str, topic: str) -> None:
    """``poll`` commits, then hands out: what was handed out and not handled is lost."""
    handled: list[int] = []
    for life in range(2):
        with Consumer(bootstrap, group=f"{topic}-at-most-once", topics=[topic], guarantee="at-most-once") as consumer:
            try:
                while not handled or handled[-1] < MESSAGES - 1:
                    for message in consumer.poll(BATCH):
                        if life == 0 and message.offset == DIES_AT:
                            raise Died
                        handled.append(message.offset)
            except Died:
                print(f"at-most-once: died at {DIES_AT}, the group stands at {standing(consumer)}")
    tell("at-most-once", handled)


def exactly_once(bootstrap: str, source: str, target: str, suffix: str) -> None:
    """What is made of the messages and the fact that they were read become visible together, or not at all."""
    group = f"{source}-exactly-once"
    died = False
    with (
        Producer(bootstrap, transactional_id=f"receipts-{suffix}") as producer,
        Consumer(bootstrap, group=group, topics=[source], guarantee="exactly-once") as consumer,
    ):
        done = 0
        while done < MESSAGES:
            messages = consumer.poll(BATCH)
            try:
                with producer.transaction() as transaction:
                    for message in messages:
                        if not died and message.offset == DIES_AT:
                            died = True
                            raise Died
                        transaction.send(target, f"receipt for {message.text()}", key=message.key)
                    transaction.send_offsets(consumer)
                done += len(messages)
            except (Died, TidelogError):
                # Nothing of the transaction will be seen: back to what is committed.
                consumer.rewind()
    with Consumer(bootstrap, topics=[target]) as reader:
        receipts: list[int] = []
        while sum(reader.lag().values()) > 0 or not receipts:
            receipts += [int(str(message.text()).rsplit(maxsplit=1)[-1]) for message in reader.poll()]
    tell("exactly-once", receipts)


def standing(consumer: Consumer) -> int:
    return max(consumer.committed().values(), default=0)


def tell(guarantee: str, handled: list[int]) -> None:
    repeated = len(handled) - len(set(handled))
    print(
        f"{guarantee}: {len(set(handled))} of {MESSAGES} handled, {repeated} of them again, {MESSAGES - len(set(handled))} lost"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
