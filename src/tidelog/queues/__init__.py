"""Queues on the log: any number of members share a partition, and each record is acknowledged by itself (KIP-932).

- ``share_partition``: the engine; what one group has handed out of one partition, to whom, until when, and how often
- ``offset_ranges``, ``lock_wheel``: its two tables, which states hold for which offsets, and which locks end when
- ``record_times``, ``delays``: the headers by which a record is due or expires, and which delayed records are due when
- ``key_order``: which records wait for earlier ones with the same key
- ``acknowledgements``: what a member says about the records that it was given, and whether that makes sense
- ``share_coordinator``: one shard of the share coordinator, which keeps the state of the engines in ``__share_group_state``
- ``records``: the records of that topic
"""
