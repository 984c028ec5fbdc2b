"""The producers of a log: their sequence numbers, epochs and open transactions, in memory and in snapshots."""
