"""One file per API, found by this table; ApiVersions is generated from it.

An API that is not whole is not in the table.
"""

from tidelog.broker.api import Api
from tidelog.broker.handlers import fetch, produce

TABLE: dict[int, Api] = {api.key: api for api in (produce.API, fetch.API)}
