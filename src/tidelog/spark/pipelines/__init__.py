"""Pipelines on Spark: from topics to tables and back, and tools that check them. ``tidelog pipeline list`` names them.

Each pipeline is a module or package with pure transformations ``DataFrame -> DataFrame`` and a thin ``run(spark, options,
reporter)``. ``pipeline`` has what they share and their names, ``command_line`` runs one from flags. Needs ``tidelog[pipelines]``.
Spark's workers import this package, so importing it does nothing.
"""
