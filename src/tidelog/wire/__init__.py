"""Kafka's wire protocol: frames, headers, error codes, an adapter over kio for cold APIs, own codecs for hot ones."""
