"""The classic protocol: members join, a leader among them assigns, all hear of it together (JoinGroup, SyncGroup).

requests -> join, sync, heartbeat, leave      one file each: what a request does to a group
               |
            rebalance, sessions               the join phase and the time-outs
               |
            group, member, state              what is known of a group
               |
            decision                          records, and the answers that wait for them
"""
