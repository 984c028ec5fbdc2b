"""Moves groups between the classic protocol and KIP-848 while their members keep running.

- ``protocol``: decides which protocol serves a request of the classic protocol, and when a group changes its type
- ``classic_members``: members of a consumer group that speak the classic protocol
- ``conversion``: the records of an upgrade and of a downgrade
"""
