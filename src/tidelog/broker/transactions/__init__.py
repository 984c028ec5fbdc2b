"""The broker's part in transactions, apart from the coordinator's decisions.

- ``transactional_produce``: a Produce request of a transaction waits until its partitions are verified.
- ``verification``: whether a partition is part of a producer's ongoing transaction.
- ``concurrent_transactions``: a request that arrives while the last transaction is still ending waits for that end.
- ``marker_writer``: appends the markers that end a transaction to this broker's partitions.
- ``client_errors``: which error codes a client of a given version understands.

``tidelog.transactions.end_transaction`` explains how a transaction ends, from EndTxn to the last marker.
"""
