"""What a log has written that no sync covers yet: segments, small files beside them, and directories whose names changed."""

from tidelog.log.segment import LogSegment
from tidelog.ports.disk import DiskFile


class Unsynced:
    __slots__ = ("directories", "files", "segments")

    def __init__(self) -> None:
        # In order of base offset: the old segment is synced before the new one.
        self.segments: list[LogSegment] = []
        self.files: tuple[DiskFile, ...] = ()
        self.directories: tuple[str, ...] = ()

    def note_directory(self, directory: str) -> None:
        if directory not in self.directories:
            self.directories = (*self.directories, directory)

    def forget_directories(self, synced: list[str]) -> None:
        """A sync that is about to run covers them."""
        self.directories = tuple(directory for directory in self.directories if directory not in synced)

    def forget_segments(self, gone: list[LogSegment]) -> None:
        """They have left the log: nobody needs their bytes durable any more."""
        self.segments = [segment for segment in self.segments if segment not in gone]
