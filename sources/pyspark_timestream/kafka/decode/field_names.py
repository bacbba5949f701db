"""Checks the names of a schema's fields and of the options for times against one another.

The rules are semantics 1.2 and 13.2.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom
from pyspark_timestream.kafka.options.paths import PATH_FORM, Path, format_path, parse_path

__all__ = ["check_field_names", "check_paths"]

_PASSABLE: Final = "a path through objects only: columns that are structs, or strings"


def check_field_names(options: KafkaOptions, fields: pa.Schema) -> None:
    """Check that columns and options for times lead to one field each.

    Args:
        options: the options.
        fields: the columns that are fields of the value.

    Raises:
        SchemaRefused: the name of a column is not a path, or goes through what is not an object.
        OptionError: an option does, or could mean two things beside these columns.
    """
    declared = check_paths(fields)
    for option, source in _list_sources(options):
        if source.given and (source.given,) in declared:
            raise OptionError(
                option,
                f"'{source.given}' is ambiguous: it means the record's timestamp, and .schema(...) "
                "reads a field of that name",
                f"'record:timestamp' for the record's, 'field:{source.given}' for the field",
                "write the one that is meant",
            )
        obstacle = _find_obstacle(source.path, declared) if source.kind == "field" else ""
        if obstacle:
            raise OptionError(
                option,
                f"'{source}' {obstacle}",
                _PASSABLE,
                "change the type of the column, or leave it out",
            )


def check_paths(fields: pa.Schema) -> Mapping[Path, pa.Field]:
    """Check that columns, by the paths that are their names, lead to one field each.

    Raises:
        SchemaRefused: the name of a column is not a path, or goes through what is not an object.
    """
    declared = {_parse_column(field.name): field for field in fields}
    for path, field in declared.items():
        obstacle = _find_obstacle(path, declared)
        if obstacle:
            raise SchemaRefused(
                f"column '{field.name}' {obstacle}", _PASSABLE, "leave one of the two out"
            )
    return declared


def _parse_column(name: str) -> Path:
    try:
        return parse_path(name)
    except ValueError as error:
        raise SchemaRefused(
            f"column '{name}' is not the path of a field: {error}",
            PATH_FORM,
            f"to read a field of just this name, call the column {format_path((name,))}",
        ) from error


def _list_sources(options: KafkaOptions) -> Iterator[tuple[str, TimeFrom]]:
    yield "startTime", options.start_time
    if options.end_time is not None:
        yield "endTime", options.end_time
    if options.edge is not None:
        yield "edge", options.edge
    if options.writer_from is not None:
        yield "writerFrom", options.writer_from


def _find_obstacle(path: Path, declared: Mapping[Path, pa.Field]) -> str:
    """Describe a column that `path` goes through and cannot; empty if there is none."""
    for length in range(1, len(path)):
        column = declared.get(path[:length])
        if column is None:
            continue
        kind = column.type
        for depth in range(length, len(path)):
            if pa.types.is_string(kind):
                break
            if not pa.types.is_struct(kind):
                return (
                    f"goes through '{format_path(path[:depth])}', which column '{column.name}' "
                    f"declares as {kind}"
                )
            place = kind.get_field_index(path[depth])
            if place < 0:
                break
            kind = kind.field(place).type
    return ""
