"""The consumer protocol (KIP-848): the coordinator assigns, and members reconcile with each heartbeat.

- ``requests``: the heartbeat, its checks and its response
- ``protocol``: what a heartbeat does, who its sender is, time-outs, ConsumerGroupDescribe
- ``rebalance``: subscriptions and the group epoch, the target assignment, reconciliation
- ``group``: the state of a group and its members, and the replay of its records
"""
