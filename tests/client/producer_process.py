"""What is killed: a process that sends, alone or in transactions. ``python -m tests.client.producer_process KIND BOOTSTRAP ...``

``plain TOPIC RUN``: sends ``RUN:0``, ``RUN:1``, ... and prints the number of each that is acknowledged. ``transform SOURCE TARGET
GROUP COUNT``: moves messages from a topic to another exactly once, and ends when the group has read COUNT in all.
"""

import sys
import threading

from tidelog.client.consumer import Consumer
from tidelog.client.errors import Fenced, TidelogError, TransactionFatal
from tidelog.client.futures import Delivery
from tidelog.client.producer import Producer

IN_FLIGHT_MAX = 500


def send(bootstrap: str, topic: str, run: str) -> None:
    room = threading.Semaphore(IN_FLIGHT_MAX)

    def acknowledged(number: int, delivery: Delivery) -> None:
        room.release()
        if delivery.exception(0) is None:
            # One write per line: a kill leaves whole lines.
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    with Producer(bootstrap, linger_ms=1) as producer:
        number = 0
        while True:
            room.acquire()
            delivery = producer.send(topic, f"{run}:{number}")
            delivery.add_done_callback(lambda done, number=number: acknowledged(number, done))  # type: ignore[misc]  # a default
            number += 1


def transform(bootstrap: str, source: str, target: str, group: str, count: int) -> None:
    while True:
        try:
            # First the producer: it ends what its predecessor left open, and offsets are read after that.
            with (
                Producer(bootstrap, transactional_id=group, transaction_timeout_ms=10_000) as producer,
                # A static member: its successor takes its place at once, and not when a killed one is missed.
                Consumer(bootstrap, group=group, topics=[source], guarantee="exactly-once", instance_id="one") as consumer,
            ):
                _transform(producer, consumer, target, count)
                return
        except Fenced:
            raise
        except TransactionFatal as error:
            sys.stderr.write(f"{error}\n")


def _transform(producer: Producer, consumer: Consumer, target: str, count: int) -> None:
    while sum(consumer.committed().values()) < count:
        messages = consumer.poll(50, timeout=0.5)
        if not messages:
            continue
        try:
            with producer.transaction() as tx:
                for message in messages:
                    tx.send(target, message.value, key=message.key)
                tx.send_offsets(consumer)
            sys.stdout.write("committed\n")
            sys.stdout.flush()
        except (Fenced, TransactionFatal):
            raise
        except TidelogError as error:
            sys.stderr.write(f"{error}\n")
            consumer.rewind()


if __name__ == "__main__":
    if sys.argv[1] == "plain":
        send(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        transform(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5], int(sys.argv[6]))
