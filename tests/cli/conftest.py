"""The fixtures of commands that talk to a broker."""

from tests.cli.command import command, fresh_command, topic

__all__ = ["command", "fresh_command", "topic"]
