"""The leader's and follower's view of a partition: in-sync set, epochs, high watermark."""
