"""The connections of one Python process: a worker runs many tasks, one after the other, and keeps them from one to the next."""

import os

from tidelog.client.fetch.client import FetchClient
from tidelog.client.fetch.types import Fetcher
from tidelog.spark.options import Connection, Isolation, SourceOptions

# Queries that one worker serves at a time are few; whoever comes back later connects anew.
CLIENTS_MAX = 8

_Key = tuple[int, Connection, Isolation, Fetcher]
_clients: dict[_Key, FetchClient] = {}


def fetch_client(options: SourceOptions) -> FetchClient:
    """The process is in the key: a connection that came along by fork is somebody else's."""
    key = _key(options)
    if key not in _clients:
        if len(_clients) >= CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()
        connection = options.connection
        _clients[key] = FetchClient(
            connection.bootstrap, settings=dict(connection.settings), isolation=options.isolation, fetcher=options.fetcher
        )
    return _clients[key]


def forget_client(options: SourceOptions) -> None:
    """After a failure, or when the query ends."""
    client = _clients.pop(_key(options), None)
    if client is not None:
        client.close()


def _key(options: SourceOptions) -> _Key:
    return os.getpid(), options.connection, options.isolation, options.fetcher
