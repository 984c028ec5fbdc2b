"""``make bench-spark``: our Spark source beside the stock connector, on one broker, in one run."""
