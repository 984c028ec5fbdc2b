"""The metadata quorum: which node leads it and which records are committed.

``quorum`` makes every decision, for any number of voters; ``messages`` and ``voters`` are the data that it works on.
``control_records`` are the quorum's own records in the log, and ``quorum_state`` keeps epoch and vote on disk.
"""
