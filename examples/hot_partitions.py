"""A hot key: found, spread over partitions, counted where it is read, merged. ``python examples/hot_partitions.py [HOST:PORT]``

The page that goes with it: docs/guides/hot-partitions.md.
"""

import secrets
import sys
from collections import Counter, defaultdict

from tidelog import Admin, Consumer, Producer
from tidelog.client.hot_keys import HotKeys
from tidelog.client.spread import merge, spread

PARTITIONS = 8
VIEWS = 4_000
# Of the views of a video, so many come twice: an application that was killed sends its last ones again.
REPEATED = 200


def main(bootstrap: str) -> None:
    plain, spreaded = (f"views-{secrets.token_hex(4)}" for _ in range(2))
    with Admin(bootstrap) as admin:
        for topic in (plain, spreaded):
            admin.create_topic(topic, partitions=PARTITIONS)
        views = [(f"view-{number}", "viral" if number % 4 else f"video-{number % 100}") for number in range(VIEWS)]
        views += views[-REPEATED:]

        send(bootstrap, plain, views, hot=set())
        hot = report(bootstrap, plain, len(views))
        send(bootstrap, spreaded, views, hot=hot)
        report(bootstrap, spreaded, len(views))

        totals = count(bootstrap, spreaded, len(views))
        expected = Counter(video for _, video in dict(views).items())
        print(f"viral was seen {totals['viral']:,} times; all counts are right: {totals == expected}")
        for topic in (plain, spreaded):
            admin.delete_topic(topic)


def send(bootstrap: str, topic: str, views: list[tuple[str, str]], hot: set[str]) -> None:
    """The video is the key; a hot one gets a suffix. ``by=`` puts a view that is sent again where it was the first time."""
    with Producer(bootstrap) as producer:
        for view, video in views:
            key = spread(video, PARTITIONS, by=view, partitions=PARTITIONS) if video in hot else video
            producer.send(topic, view, key=key)


def report(bootstrap: str, topic: str, messages: int) -> set[str]:
    """What ``tidelog topics hotkeys`` shows; returns the keys with more than a partition's even part."""
    sample = HotKeys(range(PARTITIONS))
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while sample.messages < messages:
            for message in consumer.poll(timeout=10):
                sample.add(message.partition, message.key, len(message.value or b""))
    hottest = max(sample.partitions(), key=lambda share: share.messages)
    print(f"{topic.split('-')[0]}: the fullest partition has {hottest.skew:.1f} times the mean")
    return {key.key.decode() for key in sample.keys(10) if key.share > 1 / PARTITIONS}


def count(bootstrap: str, topic: str, messages: int) -> dict[str, int]:
    """The reading side. Each partition is counted by itself, as by a consumer of its own: repeated views are dropped with what
    that partition has seen, and nothing else. The merge puts the suffixed keys together."""
    seen: dict[int, set[bytes | None]] = defaultdict(set)
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    read = 0
    with Consumer(bootstrap, topics=[topic]) as consumer:
        while read < messages:
            for message in consumer.poll(timeout=10):
                read += 1
                if message.value not in seen[message.partition]:
                    seen[message.partition].add(message.value)
                    counts[message.partition][(message.key or b"").decode()] += 1
    partials = [item for partition in counts.values() for item in partition.items()]
    return merge(partials, lambda one, other: one + other)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
