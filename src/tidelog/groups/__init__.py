"""Consumer groups: membership, assignment and committed offsets.

- ``coordinator``: one shard of the group coordinator; joins the parts below
- ``group``: what groups of every type have in common
- ``classic``: the classic protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup)
- ``consumer``: the consumer protocol of KIP-848 (ConsumerGroupHeartbeat)
- ``share``: share groups (KIP-932), whose members may read the same partition (ShareGroupHeartbeat)
- ``migration``: groups that move from one protocol to the other
- ``assignors``: which member gets which partitions
- ``offsets``: committed offsets, including those of open transactions, and their expiry
- ``records``: the records of ``__consumer_offsets``
- ``consumer_protocol``: what classic consumers embed in JoinGroup and SyncGroup
- ``lag``, ``desired_consumers``: how far a group is behind, and how many consumers it needs
"""
