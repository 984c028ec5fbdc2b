"""Writes Arrow columns to topics, for Spark's sink: record batches are encoded from whole columns, without a Python object per
message, and sent over our own connections.

``encoding`` makes batches of columns, and ``producer`` sends them. It needs ``tidelog[spark]`` (pyarrow and numpy). Nothing else
in the toolkit imports this package.
"""
