"""The fixtures of commands that talk to a broker."""

from tests.cli.command import command, command_of_a_page, topic

__all__ = ["command", "command_of_a_page", "topic"]
