"""``make bench-pipelines``: archive beside the stock connector, as its backlog grows, and after many small batches."""
