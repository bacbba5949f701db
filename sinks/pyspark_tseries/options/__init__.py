"""The options of writes and reads: frozen dataclasses, and the texts that make them."""

from pyspark_tseries.options.parse import (
    VIEW,
    parse_any_read,
    parse_read,
    parse_subscribe,
    parse_write,
)
from pyspark_tseries.options.read import ReadOptions, SubscribeOptions
from pyspark_tseries.options.values import DURABILITIES, os_user
from pyspark_tseries.options.write import WriteOptions
from pyspark_tseries.storage.location import local_path

__all__ = [
    "DURABILITIES",
    "VIEW",
    "ReadOptions",
    "SubscribeOptions",
    "WriteOptions",
    "local_path",
    "os_user",
    "parse_any_read",
    "parse_read",
    "parse_subscribe",
    "parse_write",
]
