"""Reads ranges of partitions as Arrow columns, for Spark and audits: without a group, and without a Python object per message.

    from tidelog.client.fetch.client import FetchClient

    with FetchClient("127.0.0.1:9092") as client:
        for batch in client.read("orders", 0, start=0, end=1_000_000):
            batch.column("value")

It needs ``tidelog[spark]`` (pyarrow and numpy). Nothing else in the toolkit imports this package.
"""
