"""Consumer groups, classic and KIP-848, and their committed offsets: state machines on the coordinator runtime."""
