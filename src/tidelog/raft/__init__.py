"""The metadata quorum: which node leads it and which records are committed. It has one voter for now.

``single_voter`` makes the decisions, ``quorum_state`` keeps epoch and vote on disk.
"""
