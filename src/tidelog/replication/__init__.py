"""Leader and follower of a partition: in-sync set, epochs, high watermark."""
