"""The broker: it joins log, replication, metadata and coordinators; a shell moves its bytes."""
