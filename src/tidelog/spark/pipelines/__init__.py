"""Pipelines on Spark: topics to tables and back, and what watches over them. ``tidelog pipeline list`` names them.

Each is a module with pure transformations ``DataFrame -> DataFrame`` and a thin ``run(spark, options, reporter)``. ``pipeline``
has what they share, ``registry`` their names. Needs ``tidelog[pipelines]``. Spark's workers import this package: nothing happens
here.
"""
