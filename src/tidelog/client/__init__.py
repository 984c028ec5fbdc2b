"""The toolkit's clients of Kafka. Everything above (worker, dead letters, Spark, command line) reaches a broker through this
package.

For applications: ``producer`` with ``futures``, ``partitioners`` and ``transaction``; ``consumer`` with ``message``; ``table``;
``queue``; ``admin``; their asyncio versions in ``asyncio_*``; ``spread`` and ``hot_keys`` for hot partitions, ``tracing`` for
traces, ``errors`` for all of them.

For tools: ``raw_producer`` and ``raw_consumer`` have no policies of their own; ``fetch`` reads ranges of partitions as Arrow
columns; ``transactions`` and ``quotas`` are calls that librdkafka lacks, over the connection in ``wire``.

``librdkafka`` says how clients of librdkafka are opened. No other package imports confluent_kafka.
"""
