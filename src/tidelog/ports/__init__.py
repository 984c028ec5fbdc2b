"""Clock, randomness, disk, network and executor: interfaces and their real versions."""
