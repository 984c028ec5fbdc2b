"""Pulls the plug: brokers on a disk that a power cut leaves as a drive with a volatile cache would leave it."""
