"""Exactly-once: producer ids, and the coordinator that makes writes to many partitions take effect together or not at all.

For each transactional id the coordinator keeps who may write under it (producer id and epoch) and how far its transaction has
come. A transaction ends in two steps. First the decision is made durable: PrepareCommit or PrepareAbort in
``__transaction_state``. From then on its outcome is fixed, and the producer hears so. Then a marker is written to every partition
of the transaction, as often as it takes, and at the end CompleteCommit or CompleteAbort. A crash anywhere in between finds the
decision, and sends all markers again.
"""
