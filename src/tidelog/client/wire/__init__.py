"""A small synchronous Kafka connection on our own codecs, for calls that librdkafka lacks or that must not go through it.

- ``connection``: ``BrokerConnection``, one socket to one broker; addresses and the API versions that we speak.
- ``brokers``: ``Brokers``, the cluster's metadata and a pool of connections.
- ``retries``: which errors are worth another attempt, and the pauses in between.
- ``errors``: the exceptions, how error codes become exceptions, and how these become the toolkit's.

Fetching, transactions, quotas and the Spark sink use it. It speaks plaintext only, and says so where a broker requires TLS or
SASL.
"""
