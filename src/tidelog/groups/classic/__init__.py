"""The classic protocol: members join, a leader among them assigns, and all get the result together (JoinGroup, SyncGroup).

- ``requests``: requests and responses, and what is checked before any group is looked at
- ``protocol``: what each request does to a group, and the replay of the log
- ``rebalance``: the join and sync phases, session time-outs, and decisions with the answers that wait for them
- ``group``: the state of a group and its members, and its record
"""
