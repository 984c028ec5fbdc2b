"""The sink writes rows to topics, exactly once.

``job`` holds the commit protocol, its decisions and its steps; it needs neither Spark nor a cluster and is tested at every crash
point. ``ledger`` keeps what was committed, ``names`` names things in the cluster, ``column_task`` writes columns (and
``task`` rows, through librdkafka, where a setting is beyond our own connections), ``rows`` checks them, ``connections``
keeps a process's connections, and ``writers`` is what Spark calls.
"""
