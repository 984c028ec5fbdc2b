"""The broker connects logs, replication, metadata and coordinators. The server around it moves the bytes."""
