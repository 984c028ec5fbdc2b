"""Tidelog: one durable log, every way to queue."""

# The one place of the version; the build reads it from here. Not asked of the installed package: that takes 15 ms.
__version__ = "0.1.0"
