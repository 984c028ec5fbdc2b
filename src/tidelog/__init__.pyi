"""The types of the names that ``__init__.py`` loads on use. Here and not there: what the package imports, even for types only,
counts for the layering of all that imports the package for its version."""

from tidelog.client.admin import Admin as Admin
from tidelog.client.asyncio_admin import AsyncAdmin as AsyncAdmin
from tidelog.client.asyncio_consumer import AsyncConsumer as AsyncConsumer
from tidelog.client.asyncio_producer import AsyncProducer as AsyncProducer
from tidelog.client.asyncio_queue import AsyncQueue as AsyncQueue
from tidelog.client.asyncio_table import AsyncTable as AsyncTable
from tidelog.client.consumer import Consumer as Consumer
from tidelog.client.errors import TidelogError as TidelogError
from tidelog.client.producer import Producer as Producer
from tidelog.client.queue import Queue as Queue
from tidelog.client.table import Table as Table
from tidelog.worker.failures import Backoff as Backoff
from tidelog.worker.failures import Reject as Reject
from tidelog.worker.failures import Retry as Retry
from tidelog.worker.worker import Worker as Worker

__version__: str
