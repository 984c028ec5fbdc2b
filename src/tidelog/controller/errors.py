"""The exception that becomes an error of the protocol. The client gets its code and reason unchanged."""

from tidelog.wire.errors import ErrorCode


class ApiError(Exception):
    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message if message is not None else code.message)
        self.code = code

    @property
    def message(self) -> str:
        return str(self.args[0])
