"""The command line: one module per command group, with its options, its text and its JSON.

``main`` dispatches and turns errors into exit codes, ``kafka`` opens clients, ``output`` prints, ``times`` handles moments
and durations. Commands reach Kafka through ``tidelog.client`` only, so all except ``start`` and ``log`` work on any Kafka.
"""
