"""A segment's files: the batches, and the indexes that find things in them."""
