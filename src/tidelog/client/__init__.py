"""What applications and tools use to talk to a cluster, on any Kafka. It knows nothing of the broker but its protocol."""
