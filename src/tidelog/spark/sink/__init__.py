"""The sink: rows into topics, exactly once.

Decisions (``entry``) and the steps over them (``job``) need neither Spark nor a cluster and are tested at every crash point. The
ledger (``ledger``), tasks (``task``, ``rows``) and what Spark calls (``writers``) are around them.
"""
