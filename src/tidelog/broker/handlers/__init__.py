"""One file per API, found by this table; ApiVersions is generated from it.

An API that is not whole is not in the table.
"""

from tidelog.broker.api import Api
from tidelog.broker.handlers import api_versions, create_topics, fetch, metadata, produce

TABLE: dict[int, Api] = {module.API.key: module.API for module in (produce, fetch, metadata, api_versions, create_topics)}
