"""Reads the options of writes, reads and subscriptions from Spark's string map."""

import dataclasses
from collections.abc import Mapping
from typing import Final, TypeVar

from pyspark_timestream.connector.options import (
    OptionError,
    option_specs,
    read_options,
)
from pyspark_tseries.options.read import ReadOptions, SubscribeOptions
from pyspark_tseries.options.values import PATH
from pyspark_tseries.options.write import WriteOptions
from pyspark_tseries.storage.location import parse_location

__all__ = ["VIEW", "parse_any_read", "parse_read", "parse_subscribe", "parse_write"]

T = TypeVar("T", "WriteOptions", "ReadOptions", "SubscribeOptions")

_STORAGE: Final = "storageoptions."
"""Options that begin so, in any case, say how an object store is reached."""


def parse_write(raw: Mapping[str, str]) -> WriteOptions:
    """The write options of Spark's map; raises OptionError before anything is written."""
    return _parse(WriteOptions, raw)


def parse_read(raw: Mapping[str, str]) -> ReadOptions:
    """The read options of Spark's map; raises OptionError before anything is read."""
    return _parse(ReadOptions, raw)


def parse_subscribe(raw: Mapping[str, str]) -> SubscribeOptions:
    """The options of a subscription in Spark's map; raises OptionError before anything is read."""
    return _parse(SubscribeOptions, raw)


def parse_any_read(raw: Mapping[str, str]) -> ReadOptions | SubscribeOptions:
    """The options of a read that may be a subscription; raises OptionError where it is neither."""
    both = {spec.name.lower() for spec in option_specs(ReadOptions).values()}
    only_streams = {spec.name.lower() for spec in option_specs(SubscribeOptions).values()} - both
    streams = only_streams & {name.lower() for name in raw}
    return parse_subscribe(raw) if streams else parse_read(raw)


_BELONGS: Final = {
    WriteOptions: "belongs to writes",
    ReadOptions: "belongs to spark.read",
    SubscribeOptions: "belongs to spark.readStream",
}


VIEW: Final = "CREATE TEMPORARY VIEW name USING tseries OPTIONS (path '/data/trips')"
"""The statement of SQL where a table cannot have the options."""


def _parse(mine: type[T], raw: Mapping[str, str]) -> T:
    if not raw:
        raise OptionError(
            "path",
            "it is missing, as it always is in a write to a table of Spark's catalog, and in a "
            "read of one that was created with columns (CREATE TABLE, saveAsTable): Spark passes a "
            "Python source no options of such a table",
            PATH.accepts,
            "name the store in .load(path), .save(path) or .start(path), in SQL INSERT INTO name "
            "WITH (path '/data/trips'); to read a table, DROP such a table and create it without "
            f"columns, or {VIEW} instead",
        )
    foreign = {
        spec.name: belongs
        for other, belongs in _BELONGS.items()
        if other is not mine
        for spec in option_specs(other).values()
    }
    read = read_options(mine, raw, foreign=foreign, prefixes=(_STORAGE,))
    given = {key[len(_STORAGE) :]: raw[key] for key in raw if key.lower().startswith(_STORAGE)}
    return dataclasses.replace(read, storage=parse_location(read.path, given).options)
