"""Checks wanted columns against a reader's message, and plans their reading."""

from typing import Any

import pyarrow as pa

from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.protobuf.plans import (
    Misfit,
    Plan,
    Tree,
    check_readable,
    describe_type,
    merge_trees,
    plan_field,
    plan_raw,
)
from pyspark_timestream.kafka.decode.protobuf.reader import ProtobufReader, compile_reader
from pyspark_timestream.kafka.options.paths import parse_path

__all__ = ["check_protobuf_columns", "nest_plans", "plan_columns", "plan_raw_fields"]


def check_protobuf_columns(
    reader: ProtobufReader, columns: pa.Schema, raw: tuple[str, ...] = ()
) -> None:
    """Check that the payloads of `reader` can be read as `columns`, and times from `raw`.

    Raises:
        SchemaRefused: a column names no field, or has a type that the field is not read as.
    """
    plans = [
        (field.name, plan)
        for field, plan in zip(columns, plan_columns(reader, columns), strict=True)
    ]
    plans += plan_raw_fields(reader, raw).items()
    nest_plans(plans)


def plan_columns(reader: ProtobufReader, columns: pa.Schema) -> list[Plan]:
    """Plan the reading of `columns`, in their order.

    Raises:
        SchemaRefused: one cannot be read.
    """
    return [
        _refuse_misfit(f"column '{column.name}'", reader, column.name, column.type)
        for column in columns
    ]


def plan_raw_fields(reader: ProtobufReader, names: tuple[str, ...]) -> dict[str, Plan]:
    """Plan the reading of fields for event times and edges.

    Raises:
        SchemaRefused: one cannot be read.
    """
    return {name: _refuse_misfit(f"field '{name}'", reader, name, None) for name in names}


def nest_plans(plans: list[tuple[str, Plan]]) -> Tree:
    """Return the fields that the columns need, from the message on.

    Raises:
        SchemaRefused: a column needs a message's fields, and another one its bytes.
    """
    try:
        return merge_trees([_nest(name, plan) for name, plan in plans])
    except ValueError as error:
        raise SchemaRefused(
            f"field '{error}' is read as binary, and also as a struct or by its fields",
            "one of them",
            "leave one of the columns out",
        ) from None


def _nest(name: str, plan: Plan) -> Tree:
    *parents, last = parse_path(name)
    tree: Tree = {last: plan.tree}
    for parent in reversed(parents):
        tree = {parent: tree}
    return tree


def _refuse_misfit(
    what: str, reader: ProtobufReader, name: str, target: pa.DataType | None
) -> Plan:
    """Plan the field at `name`; errors begin with `what`."""
    try:
        field = _find_field(reader, name)
        return plan_raw(field) if target is None else plan_field(field, target)
    except Misfit as misfit:
        raise SchemaRefused(
            f"{what} cannot be read: {misfit.problem}",
            misfit.accepts,
            "declare one of these, or leave it out",
        ) from None


def _find_field(reader: ProtobufReader, name: str) -> Any:
    """Find the field at the path `name`, which leads through single messages."""
    message, field = compile_reader(reader).descriptor, None
    for part in parse_path(name):
        if field is not None:
            check_readable(field)
            if field.type != field.TYPE_MESSAGE or field.is_repeated:
                raise Misfit(
                    f"'{field.full_name}' is {describe_type(field)}, which is not a single message",
                    "a path through single messages",
                )
            message = field.message_type
        field = message.fields_by_name.get(part)
        if field is None:
            names = [each.name for each in message.fields]
            raise Misfit(
                f"message '{message.full_name}' lacks the field '{part}'",
                ", ".join(names) or "a message with fields",
            )
    return field
