"""Tables of Spark's catalog over a format: their options, kept in their columns (semantics 14.4).

`CREATE TABLE name USING format OPTIONS (...)` without columns asks a Python source for them, with
the options and much of Spark's own: `provider`, `owner`, `location`, the table's properties, and
each option a second time as `option.NAME`. A read of the table gives the source these columns, and
no option at all. So the source puts the options into the metadata of the first column, which the
catalog keeps, and finds them there.

A write to the table comes with that metadata too, but so does one to any other place of rows that
were read from the table. So they count in reads alone, and only where no option is given: options
that are named at a read (`WITH (...)`, `.option(...)`) are all that it has.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from pyspark_timestream.connector.options import OptionError, is_secret

__all__ = ["drop_options", "keep_options", "read_definition", "restore_options"]

_MARK: Final = "provider"
_OPTION: Final = "option."
_PATH: Final = "path"
_KEY: Final = "timestream.tableOptions"


def read_definition(raw: Mapping[str, str], view: str) -> dict[str, str] | None:
    """The user's options in what `CREATE TABLE` asks with; None if it does not ask.

    Args:
        raw: option name in any case -> text.
        view: the statement to go on with where a table cannot have the options.

    Raises:
        OptionError: an option is a secret, and the columns of a table are no place for one.
    """
    given = {key.lower(): value for key, value in raw.items()}
    if _MARK not in given:
        return None
    options = {
        key[len(_OPTION) :]: value for key, value in given.items() if key.startswith(_OPTION)
    }
    places = [given[name] for name in (_PATH, "location") if name in given]
    for name, value in [*options.items(), *((_PATH, place) for place in places)]:
        if is_secret(name, value):
            raise OptionError(
                name,
                "it is a secret, and everyone who may read a table of Spark's catalog (CREATE "
                "TABLE) sees its options",
                "tables without secrets",
                f"a temporary view, which is of this session alone: {view}",
            )
    return options | ({_PATH: places[0]} if places else {})


def keep_options(schema: StructType, options: Mapping[str, str], source: str) -> StructType:
    """The columns `schema` of a table of format `source`, with its options."""
    first, *others = schema.fields
    kept = {**first.metadata, _KEY: {"format": source, "options": dict(options)}}
    field = StructField(first.name, first.dataType, first.nullable, kept)
    return StructType([field, *others])


def restore_options(
    raw: Mapping[str, str], schema: StructType, source: str
) -> dict[str, str] | None:
    """The options of the table that is read without any, by its columns; None if it is none."""
    if raw:
        return None
    kept = [field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata]
    if not kept or kept[0].get("format") != source:
        return None
    return dict(kept[0]["options"])


def drop_options(schema: StructType) -> StructType:
    """The columns `schema` without the options of a table."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.nullable,
                {key: value for key, value in field.metadata.items() if key != _KEY},
            )
            for field in schema.fields
        ]
    )
