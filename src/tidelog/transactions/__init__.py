"""Exactly-once: producer ids, and the coordinator that makes writes to many partitions take effect together or not at all.

For each transactional id the coordinator keeps which producer may use it (producer id and epoch) and the state of its
transaction.

- ``coordinator``: one shard of the transaction coordinator: InitProducerId, AddPartitionsToTxn, time-outs, expiry, listing
- ``end_transaction``: how a transaction ends, from EndTxn to the last marker
- ``transaction``: the state of the transactional ids, and the steps that it may take
- ``state``, ``records``: the states, and the records of ``__transaction_state``
- ``producer_ids``: producer ids for everybody on this broker
- ``environment``: what the broker hands to every shard
"""
