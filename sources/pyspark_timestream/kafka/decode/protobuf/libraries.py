"""The optional libraries that read Protobuf, imported when they are first needed."""

import functools
import importlib
from typing import Any, NamedTuple

from pyspark_timestream.errors import MissingExtra

__all__ = ["Libraries", "import_libraries"]


class Libraries(NamedTuple):
    """The modules that read Protobuf: Google's own reader, and the one that yields Arrow."""

    descriptor_pb2: Any
    descriptor_pool: Any
    message_factory: Any
    ptars: Any
    DecodeError: type[Exception]

    @staticmethod
    def import_module(name: str) -> Any:
        """Import a module of compiled messages."""
        return importlib.import_module(name)


@functools.cache
def import_libraries() -> Libraries:
    """Import the modules.

    Raises:
        MissingExtra: one of them is not installed.
    """
    try:
        return Libraries(
            importlib.import_module("google.protobuf.descriptor_pb2"),
            importlib.import_module("google.protobuf.descriptor_pool"),
            importlib.import_module("google.protobuf.message_factory"),
            importlib.import_module("ptars"),
            importlib.import_module("google.protobuf.message").DecodeError,
        )
    except ImportError as error:
        raise MissingExtra.create("reading Protobuf", error.name or "ptars", "protobuf") from error
