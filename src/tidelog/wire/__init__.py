"""Kafka's wire protocol.

``frames`` cuts a stream into frames, ``protocol`` has the table of APIs and the headers, ``errors`` the table of error codes.
``primitives`` reads and writes Kafka's types. ``schema`` describes messages and records as data and reads and writes them, and
``messages`` does so for every request and response by kio's definitions. The hottest APIs have codecs of their own, written by
hand: ``produce``, ``fetch``, ``offset_commit``, ``add_partitions_to_txn``, ``end_txn``.
"""
