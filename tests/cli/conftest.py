"""The fixtures of commands that talk to a broker."""

from tests.cli.command import command, topic

__all__ = ["command", "topic"]
