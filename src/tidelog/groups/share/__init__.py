"""Share groups (KIP-932): members that may read the same partition, and acknowledge each record by itself.

- ``group``: the state of one group, and its replay
- ``protocol``: heartbeats, members that leave, and the partitions that the share coordinator keeps state for
"""
