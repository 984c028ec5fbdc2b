"""The key of a partition on the broker's side: its topic's name and its number.

A plain tuple: it is hashed on every request, and a named tuple would cost a Python call each time one is made.
"""

TopicPartition = tuple[str, int]
