"""``make demo``: orders through a broker, a worker and the pipelines, and the proof that both ends agree."""
