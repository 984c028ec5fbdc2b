"""Consumer groups of KIP-848: the coordinator assigns partitions, members follow one by one, by heartbeats alone."""
