"""Reading partitions by range of offsets, as Arrow columns, for Spark and audits: no group, no Python object per message.

    from tidelog.client.fetch.client import FetchClient

    with FetchClient("127.0.0.1:9092") as client:
        for batch in client.read("orders", 0, start=0, end=1_000_000):
            batch.column("value")

Needs ``tidelog[spark]`` (pyarrow and numpy); nothing else of the toolkit imports this package.
"""
