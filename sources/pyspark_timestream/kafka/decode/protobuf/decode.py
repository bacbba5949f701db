"""Decodes Protobuf payloads: n messages of the reader's type to columns (semantics 13.10).

ptars would build all fields of a message, read fields of the message's own type as bytes, and treat
Protobuf's own types in its own way: a date that does not exist becomes 1970-01-01, a late timestamp
the last of 2262. So it reads a message type that we describe: requested fields only, named by their
numbers, a new type at every place, texts as bytes, enums as numbers, and maps as repeated messages
of a key and a value, as on the wire. A message that is requested as binary stays bytes, including
the fields that its schema lacks.

ptars is fast but trusts its input: of bytes that no Protobuf library writes, it reads some that it
should refuse (overlong tags, ragged packed fields) and panics at others (lengths that wrap around).
So Google's library parses them first. It parses n messages as one, each a repeated field with a tag
and a length; that costs less than ptars takes. If the library refuses a block, we halve it until
each malformed row is by itself, so a row never depends on its neighbours. If the two read the same
bytes differently (both members of a oneof, a repeated key of a map), Google's library rewrites the
requested fields in a form that both read alike, and ptars reads that.

A plan says how each column is made from the message's fields. Planning happens once, and refuses a
type that the field cannot be read as.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_timestream.core.arrow import INSTANT, Integers, Mask, locate, to_mask
from pyspark_timestream.core.instants import FINAL_US, MIN_US, SECOND_US
from pyspark_timestream.errors import SchemaRefused
from pyspark_timestream.kafka.decode.convert import (
    Convert,
    Converted,
    build_decoded_block,
    build_repeated,
    build_struct,
    can_cast,
    cast_scalars,
    convert_list,
    keep,
)
from pyspark_timestream.kafka.decode.protobuf.descriptors import (
    GROUP,
    ProtobufReader,
    compile_reader,
    describe_block,
    import_libraries,
)
from pyspark_timestream.kafka.decode.records import (
    FINE,
    SYNTAX,
    DecodedBlock,
    Reasons,
    RequestedFields,
    Tree,
    find_conflict,
    join_blocks,
    merge,
    nest,
    split_pieces,
)
from pyspark_timestream.kafka.options.parsers import Path, parse_path

_SCALARS: Final = (
    ("double", pa.float64()),
    ("float", pa.float32()),
    ("int64", pa.int64()),
    ("uint64", pa.uint64()),
    ("int32", pa.int32()),
    ("fixed64", pa.uint64()),
    ("fixed32", pa.uint32()),
    ("bool", pa.bool_()),
    ("string", pa.binary()),
    ("group", pa.null()),
    ("message", pa.null()),
    ("bytes", pa.binary()),
    ("uint32", pa.uint32()),
    ("enum", pa.int32()),
    ("sfixed32", pa.int32()),
    ("sfixed64", pa.int64()),
    ("sint32", pa.int32()),
    ("sint64", pa.int64()),
)
"""(Protobuf's name, Arrow type) of Protobuf's types, by their number, from 1."""

_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes"),
    )
)
_TIMESTAMP, _DURATION, _DATE = (
    "google.protobuf.Timestamp",
    "google.protobuf.Duration",
    "google.type.Date",
)
_MESSAGE: Final = "a struct or binary"
_MIN_S, _MAX_S = MIN_US // SECOND_US, FINAL_US // SECOND_US
_MAX_DURATION_S: Final = 315_576_000_000
_NANOS: Final = 1_000_000_000


def _convert_timestamps(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    legal = (seconds >= _MIN_S) & (seconds <= _MAX_S) & (nanos >= 0) & (nanos < _NANOS)
    return _keep_legal(_to_microseconds(seconds, nanos, legal), INSTANT, messages, legal)


def _convert_durations(messages: pa.Array) -> Converted:
    """Read messages of seconds and nanos, rounded down to the microsecond."""
    seconds, nanos = _read_integers(messages, 2)
    # Two comparisons each: the least integer has no absolute value.
    legal = (seconds >= -_MAX_DURATION_S) & (seconds <= _MAX_DURATION_S)
    legal &= (nanos > -_NANOS) & (nanos < _NANOS)
    legal &= np.sign(seconds) * np.sign(nanos) >= 0
    us = _to_microseconds(seconds, nanos, legal)
    return _keep_legal(us, pa.duration("us"), messages, legal)


def _convert_dates(messages: pa.Array) -> Converted:
    """Read messages of year, month and day."""
    year, month, day = _read_integers(messages, 3)
    legal = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    months = np.where(legal, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    first_days, after = (
        month_starts.astype("datetime64[D]").astype(np.int64)
        for month_starts in (months, months + 1)
    )
    days = first_days + np.where(legal, day, 1) - 1
    # A day that its month lacks falls into the next month.
    return _keep_legal(days.astype(np.int32), pa.date32(), messages, legal & (days < after))


def _read_integers(messages: pa.Array, count: int) -> list[Integers]:
    """Read the integer fields numbered 1 to `count`; 0 where the message is absent."""
    names = [f"f{number}" for number in range(1, count + 1)]
    arrays = [pc.fill_null(pc.struct_field(messages, name), 0) for name in names]
    return [array.to_numpy(zero_copy_only=False).astype(np.int64) for array in arrays]


def _to_microseconds(seconds: Integers, nanos: Integers, legal: Mask) -> Integers:
    return np.where(legal, seconds, 0) * SECOND_US + nanos // 1_000


def _keep_legal(
    values: npt.NDArray[np.integer], target: pa.DataType, messages: pa.Array, legal: Mask
) -> Converted:
    present = to_mask(messages.is_valid())
    return Converted(pa.array(values, mask=~(present & legal)).cast(target), present & ~legal)


class _Time(NamedTuple):
    """How to read a message that is a time: its type, the type's name in Spark, and its fields."""

    type: pa.DataType
    words: str
    fields: tuple[str, ...]
    convert: Convert


_TIMES: Final = {
    _TIMESTAMP: _Time(INSTANT, "a timestamp", ("seconds", "nanos"), _convert_timestamps),
    _DURATION: _Time(
        pa.duration("us"), "an interval day to second", ("seconds", "nanos"), _convert_durations
    ),
    _DATE: _Time(pa.date32(), "a date", ("year", "month", "day"), _convert_dates),
}


class FieldPlan(NamedTuple):
    """How to read a field.

    Attributes:
        tree: the fields to read of it; None: it is a scalar, or a message read as bytes.
        convert: converts it.
        path: the path of its column in the rows that ptars returns.
    """

    tree: Tree | None
    convert: Convert
    path: tuple[str, ...] = ()

    def read(self, rows: pa.Array) -> Converted:
        """Read the field of n rows."""
        return self.convert(pc.struct_field(rows, self.path))


class Plans(NamedTuple):
    """The plans of the requested columns and of raw fields, and all fields that these need."""

    columns: list[FieldPlan]
    raw: dict[str, FieldPlan]
    tree: Tree


class Misfit(Exception):
    """A field cannot be read as the type of a column.

    Args:
        problem: why not.
        accepts: the types that it can be read as.
    """

    def __init__(self, problem: str, accepts: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.accepts = accepts


def _describe_type(field: Any) -> str:
    """Describe a field's type as the text of a schema does."""
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{_describe_type(key)}, {_describe_type(value)}>"
    if field.type in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        name = field.message_type.full_name
    elif field.type == field.TYPE_ENUM:
        name = field.enum_type.full_name
    else:
        name = _SCALARS[field.type - 1][0]
    return f"repeated {name}" if field.is_repeated else str(name)


def _is_map(field: Any) -> bool:
    is_message = field.type == field.TYPE_MESSAGE and field.is_repeated
    return is_message and _is_map_entry(field.message_type)


def _is_map_entry(message: Any) -> bool:
    return bool(message.GetOptions().map_entry)


def _name_field(field: Any) -> str:
    """Name a field by its number, because two names may differ only in style."""
    return f"f{field.number}"


def _plan_field(field: Any, target: pa.DataType) -> FieldPlan:
    _check_readable(field)
    if _is_map(field):
        if not pa.types.is_map(target):
            raise _misfit(field, target, "a map")
        key, value = field.message_type.fields
        keys, values = _plan_one(key, target.key_type), _plan_one(value, target.item_type)
        tree: Tree = {"key": None, "value": values.tree}
        return FieldPlan(
            tree,
            lambda array: _convert_entries(array, target, keys.convert, values.convert),
        )
    if field.is_repeated:
        if not pa.types.is_list(target):
            raise _misfit(field, target, "an array")
        items = _plan_one(field, target.value_type)
        return FieldPlan(items.tree, lambda array: convert_list(array, target, items.convert))
    return _plan_one(field, target)


def _plan_raw(field: Any) -> FieldPlan:
    """Plan the reading of `field` for an event time or an edge; failures become nulls."""
    _check_readable(field)
    inner = field
    if not field.is_repeated and field.type == field.TYPE_MESSAGE:
        name = field.message_type.full_name
        if name in (_TIMESTAMP, _DATE):
            return _plan_field(field, _TIMES[name].type)
        if name in _WRAPPERS:
            inner = field.message_type.fields_by_name["value"]
    data_type = _SCALARS[inner.type - 1][1]
    if inner.type in (inner.TYPE_STRING, inner.TYPE_ENUM):
        target = pa.string()
    elif pa.types.is_integer(data_type):
        target = pa.int64()
    elif pa.types.is_floating(data_type):
        target = pa.float64()
    else:
        target = None
    if target is None or field.is_repeated:
        raise Misfit(
            f"'{field.full_name}' is {_describe_type(field)}",
            f"a {_TIMESTAMP}, {_DATE}, string, number or enum that is not repeated",
        )
    return _plan_field(field, target)


def _check_readable(field: Any) -> None:
    if field.json_name.startswith(GROUP):
        raise Misfit(f"'{field.full_name}' is a group, which is not read", "another field")


def _convert_entries(
    array: pa.Array, target: pa.DataType, convert_key: Convert, convert_item: Convert
) -> Converted:
    """Make maps of repeated entries, sorted by key, since Google's library promises no order."""
    entries = array.flatten()
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    keys = pc.struct_field(entries, "f1")
    table = pa.table({"row": np.repeat(np.arange(len(array)), lengths), "key": keys})
    order = pc.sort_indices(table, sort_keys=[("row", "ascending"), ("key", "ascending")])
    sorted_keys = convert_key(keys.take(order))
    items = convert_item(pc.struct_field(entries, "f2").take(order))
    return build_repeated(target, [sorted_keys, items], lengths, to_mask(array.is_null()))


def _name_enums(numbers: pa.Array, names: dict[int, str]) -> pa.Array:
    """Name the numbers of an enum; one without a name becomes digits, as in Protobuf's JSON."""
    encoded = numbers.dictionary_encode()
    texts = [names.get(number, str(number)) for number in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _plan_one(field: Any, target: pa.DataType) -> FieldPlan:
    """Plan the reading of one value of `field`, even if the field is repeated."""
    if field.type == field.TYPE_MESSAGE:
        return _plan_message(field, target)
    if field.type == field.TYPE_ENUM and pa.types.is_string(target):
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        return FieldPlan(None, lambda array: keep(_name_enums(array, names)))
    if field.type == field.TYPE_BYTES and pa.types.is_string(target):
        raise _misfit(field, target, "binary")
    if not _is_target(_SCALARS[field.type - 1][1], target):
        raise _misfit(field, target, _list_targets(field))
    return FieldPlan(None, lambda array: cast_scalars(array, target))


def _is_target(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a scalar can be read as `target`; texts are bytes until they are read."""
    if pa.types.is_string(target):
        return bool(pa.types.is_integer(source) or pa.types.is_binary(source))
    is_number = pa.types.is_floating(source) and pa.types.is_floating(target)
    return is_number or can_cast(source, target)


def _plan_message(field: Any, target: pa.DataType) -> FieldPlan:
    message = field.message_type
    if pa.types.is_struct(target):
        return _plan_struct(field, target)
    time = _TIMES.get(message.full_name)
    if time is not None and target == time.type:
        return FieldPlan(dict.fromkeys(time.fields), time.convert)
    if message.full_name in _WRAPPERS:
        value = message.fields_by_name["value"]
        try:
            inner = _plan_one(value, target)
        except Misfit as misfit:
            raise _misfit(field, target, misfit.accepts) from None
        return FieldPlan(
            {"value": inner.tree}, lambda array: inner.convert(pc.struct_field(array, "f1"))
        )
    if pa.types.is_binary(target):
        joins = _comes_in_pieces(field)
        return FieldPlan(None, lambda array: keep(_join_pieces(array) if joins else array))
    raise _misfit(field, target, f"{time.words}, a struct or binary" if time else _MESSAGE)


def _comes_in_pieces(field: Any) -> bool:
    """Return whether a message may arrive in several pieces, which form one message when joined.

    Fields of a oneof and of a map's entry do not: each replaces the one before.
    """
    oneof = field.containing_oneof
    return bool(
        field.type == field.TYPE_MESSAGE
        and not field.is_repeated
        and (oneof is None or len(oneof.fields) == 1)
        and not _is_map_entry(field.containing_type)
    )


def _join_pieces(pieces: pa.Array) -> pa.Array:
    """Join the pieces of each message, which are adjacent; null where a message has none."""
    if not len(pieces):
        return pa.array([], pa.binary())
    items, bounds = pieces.values, pieces.offsets.to_numpy()
    _, ends, data = items.buffers()
    offsets = np.frombuffer(ends, np.int32)[items.offset :] if ends else np.zeros(1, np.int32)
    buffers = [None, pa.py_buffer(offsets[bounds].copy()), data or pa.py_buffer(b"")]
    messages = pa.BinaryArray.from_buffers(pa.binary(), len(pieces), buffers)
    return pc.if_else(pa.array(np.diff(bounds) > 0), messages, None)


def _plan_struct(field: Any, target: pa.StructType) -> FieldPlan:
    fields = [_get_field(field.message_type, child.name) for child in target]
    plans = [_plan_field(source, child.type) for source, child in zip(fields, target, strict=True)]

    def convert(array: pa.Array) -> Converted:
        children = [
            plan.convert(pc.struct_field(array, _name_field(source)))
            for source, plan in zip(fields, plans, strict=True)
        ]
        return build_struct(target, children, to_mask(array.is_null()))

    return FieldPlan(
        {name: plan.tree for name, plan in zip(target.names, plans, strict=True)}, convert
    )


def _get_field(message: Any, name: str) -> Any:
    field = message.fields_by_name.get(name)
    if field is None:
        raise Misfit(
            f"message '{message.full_name}' lacks the field '{name}'",
            ", ".join(field.name for field in message.fields) or "a message with fields",
        )
    return field


def _misfit(field: Any, target: pa.DataType, accepts: str) -> Misfit:
    problem = f"'{field.full_name}' is {_describe_type(field)}, which is not read as {target}"
    return Misfit(problem, accepts)


def _list_targets(field: Any) -> str:
    data_type = _SCALARS[field.type - 1][1]
    if field.type == field.TYPE_STRING:
        return "a string or binary"
    if field.type == field.TYPE_ENUM:
        return "a string, for its name, or a number"
    if field.type == field.TYPE_BYTES:
        return "binary"
    if pa.types.is_integer(data_type):
        return "a number, a decimal or a string"
    return "a float or a double" if pa.types.is_floating(data_type) else "a boolean"


def plan_fields(reader: ProtobufReader, columns: pa.Schema, raw: tuple[str, ...] = ()) -> Plans:
    """Plan the reading of payloads of `reader` as `columns`, and of times from the fields `raw`.

    Raises:
        SchemaRefused: a column names no field, or has a type that the field cannot be read as; or
            one column reads a message's fields, and another one reads it as bytes.
    """
    planned = [
        _plan(f"column '{column.name}'", reader, column.name, column.type) for column in columns
    ]
    plans = Plans(planned, {name: _plan(f"field '{name}'", reader, name) for name in raw}, {})
    for name, plan in [*zip(columns.names, planned, strict=True), *plans.raw.items()]:
        tree = nest(parse_path(name), plan.tree)
        conflict = find_conflict(plans.tree, tree)
        if conflict is not None:
            raise SchemaRefused(
                f"field '{'.'.join(conflict)}' is read as binary, and also as a struct or by its "
                "fields",
                "one of them",
                "leave one of the columns out",
            )
        merge(plans.tree, tree)
    return plans


def _plan(
    subject: str, reader: ProtobufReader, name: str, target: pa.DataType | None = None
) -> FieldPlan:
    """Plan the field at `name`; without a target, as event times. Errors begin with `subject`."""
    try:
        fields = _find_fields(reader, parse_path(name))
        plan = _plan_raw(fields[-1]) if target is None else _plan_field(fields[-1], target)
    except Misfit as misfit:
        raise SchemaRefused(
            f"{subject} cannot be read: {misfit.problem}",
            misfit.accepts,
            "declare one of these, or leave it out",
        ) from None
    return plan._replace(path=tuple(map(_name_field, fields)))


def _find_fields(reader: ProtobufReader, path: Path) -> list[Any]:
    """Find the fields along a path; all parents must be single messages."""
    message = compile_reader(reader).descriptor
    fields = [_get_field(message, path[0])]
    for name in path[1:]:
        parent = fields[-1]
        _check_readable(parent)
        if parent.type != parent.TYPE_MESSAGE or parent.is_repeated:
            raise Misfit(
                f"'{parent.full_name}' is {_describe_type(parent)}, which is not a single message",
                "a path through single messages",
            )
        fields.append(_get_field(parent.message_type, name))
    return fields


T = TypeVar("T")

_PACKAGE: Final = "requested"

_MAX_ROWS: Final = 8_192
_MAX_BYTES: Final = 256 * 1024
"""The size of a piece that is parsed at once, unless a single message is larger.

Parsed messages can take some hundred times the memory of their bytes.
"""

_ROW_TAG: Final = 0x0A
"""The tag of field 1 with a length-delimited value."""


class _Describer:
    """Describes a block's `rows` again, with only the fields of a tree.

    Both libraries read the same bytes with such descriptors. For ptars, members of oneofs are
    optional fields, enums are numbers and maps are repeated entries. For Google's library (`exact`)
    everything that decides which value counts stays: whole oneofs, closed enums, and maps.
    """

    def __init__(self, *, exact: bool) -> None:
        libraries = import_libraries()
        self._exact = exact
        self._types = libraries.descriptor_pb2.FieldDescriptorProto
        self._file = libraries.descriptor_pb2.FileDescriptorProto(
            name="block.proto", package=_PACKAGE, syntax="proto2" if exact else "proto3"
        )

    def describe(self, message: Any, tree: Tree) -> Any:
        """Return the descriptor of a block of `message`."""
        pool = import_libraries().descriptor_pool.DescriptorPool()
        return describe_block(pool, self._file, self._add_message(message, tree))

    def _add_message(self, message: Any, tree: Tree) -> str:
        """Add `message` with the fields of `tree`, and return the name of its type."""
        descriptor = self._file.message_type.add(name=f"M{len(self._file.message_type)}")
        oneofs: set[str] = set()
        for name, inner in tree.items():
            field = message.fields_by_name[name]
            oneof = field.containing_oneof
            if not self._exact or oneof is None or len(oneof.fields) == 1:
                self._add_field(descriptor, field, inner)
            elif oneof.name not in oneofs:
                oneofs.add(oneof.name)
                descriptor.oneof_decl.add(name=f"o{len(oneofs)}")
                for member in oneof.fields:
                    member_field = self._add_field(descriptor, member, tree.get(member.name))
                    member_field.oneof_index = len(oneofs) - 1
        return f".{_PACKAGE}.{descriptor.name}"

    def _add_field(self, message: Any, field: Any, tree: Tree | None) -> Any:
        types = self._types
        in_pieces = tree is None and _comes_in_pieces(field)
        descriptor = message.field.add(
            name=_name_field(field),
            number=field.number,
            label=types.LABEL_REPEATED if field.is_repeated or in_pieces else types.LABEL_OPTIONAL,
            type=self._choose_type(field, tree),
            json_name=str(field.number),
        )
        if self._exact and field.type == types.TYPE_ENUM and field.enum_type.is_closed:
            # A closed enum ignores unknown numbers, so its values have to be known.
            scope = self._file.message_type.add(name=f"E{len(self._file.message_type)}")
            field.enum_type.CopyToProto(scope.enum_type.add())
            descriptor.type = types.TYPE_ENUM
            descriptor.type_name = f".{_PACKAGE}.{scope.name}.{scope.enum_type[0].name}"
        elif self._exact and tree is not None and _is_map_entry(field.message_type):
            descriptor.type_name = self._add_entry(message, field, tree)
        elif tree is not None:
            descriptor.type_name = self._add_message(field.message_type, tree)
        elif not self._exact and field.has_presence and not field.is_repeated and not in_pieces:
            descriptor.proto3_optional = True
            descriptor.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{descriptor.name}")
        return descriptor

    def _add_entry(self, message: Any, field: Any, tree: Tree) -> str:
        """Add the type of a map's entries, so that the last of equal keys counts."""
        entry = message.nested_type.add(name=f"F{field.number}Entry")
        entry.options.map_entry = True
        key, value = field.message_type.fields
        entry.field.add(name="key", number=1, type=key.type, label=self._types.LABEL_OPTIONAL)
        self._add_field(entry, value, tree["value"]).name = "value"
        return f".{_PACKAGE}.{message.name}.{entry.name}"

    def _choose_type(self, field: Any, tree: Tree | None) -> int:
        """Choose the type to read `field` as; the bytes on the wire are the same."""
        types = self._types
        if field.type == types.TYPE_ENUM:
            return int(types.TYPE_INT32)
        is_bytes = field.type == types.TYPE_STRING or (
            field.type == types.TYPE_MESSAGE and tree is None
        )
        return int(types.TYPE_BYTES if is_bytes else field.type)


def create_handler(message: Any, tree: Tree) -> Any:
    """Create ptars' reader for a block with `rows` that have the fields of `tree`."""
    descriptor = _Describer(exact=False).describe(message, tree)
    return import_libraries().ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)


def _create_rewriter(message: Any, tree: Tree) -> Any:
    """Create Google's class of a block that writes only the values of `tree` that count, once."""
    descriptor = _Describer(exact=True).describe(message, tree)
    return import_libraries().message_factory.GetMessageClass(descriptor)


def _needs_rewriting(message: Any, tree: Tree) -> bool:
    """Return whether ptars may read the fields of `tree` differently from Google's library.

    In Google's library only the last member of a oneof counts, and the last of a map's entries with
    equal keys. It ignores unknown numbers of a closed enum, and further fields in entries of maps.
    """
    for name, inner in tree.items():
        field = message.fields_by_name[name]
        if field.type == field.TYPE_ENUM and field.enum_type.is_closed:
            return True
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            return True
        if field.type == field.TYPE_MESSAGE and (
            _is_map_entry(field.message_type)
            or (inner is not None and _needs_rewriting(field.message_type, inner))
        ):
            return True
    return False


class BlockReader(NamedTuple):
    """The classes that read blocks.

    Attributes:
        block_class: Google's class of a block.
        handler: ptars' reader of a block; None if no field is requested.
        rewriter: Google's class of a block with only the requested fields; None without any.
        always_rewrite: True if the two may read the same bytes of a requested field differently.
    """

    block_class: Any
    handler: Any | None
    rewriter: Any = None
    always_rewrite: bool = False


def parse_block(reader: BlockReader, messages: pa.Array) -> tuple[pa.Array | None, Mask]:
    """Parse n binary messages, none of them null.

    Return the requested fields of the well-formed messages as structs, None if none is requested;
    and n booleans: the message is well-formed.
    """
    rows_read: list[pa.Array] = []
    pieces = split_pieces(messages, _MAX_ROWS, _MAX_BYTES)
    fine = np.concatenate(
        [np.ones(0, np.bool_), *(_parse_piece(reader, p, rows_read) for p in pieces)]
    )
    if reader.handler is None:
        return None, fine
    return pa.concat_arrays(rows_read or [_to_rows(reader.handler, b"", 0)]), fine


def _parse_piece(reader: BlockReader, messages: pa.Array, columns: list[pa.Array]) -> Mask:
    """Parse messages, add their rows to `columns`, and return which are well-formed."""
    data, bounds = _join_messages(messages)
    fine = np.ones(len(messages), np.bool_)

    def check(start: int, stop: int) -> None:
        reader.block_class.FromString(data[bounds[start] : bounds[stop]])

    _, bad_rows = _isolate_failures(len(messages), check, import_libraries().DecodeError)
    fine[bad_rows] = False
    if reader.handler is None:
        return fine
    good = np.flatnonzero(fine)
    if bad_rows:
        data, bounds = _select_rows(data, bounds, good)

    def convert(start: int, stop: int) -> pa.Array:
        rows = _convert(reader, data[bounds[start] : bounds[stop]], stop - start)
        # ptars' arrays have room for many rows, so keep only a copy of a few.
        return rows if stop - start == len(good) else rows.take(np.arange(len(rows)))

    # A panic of ptars is a BaseException; no message is known to cause one here.
    rows, failed = _isolate_failures(len(good), convert, BaseException)
    columns += rows
    fine[good[failed]] = False
    return fine


def _isolate_failures(
    n: int, parse: Callable[[int, int], T], failure: type[BaseException]
) -> tuple[list[T], list[int]]:
    """Parse n rows; halve ranges that fail; return the results, and the rows that fail singly."""
    results: list[T] = []
    failed: list[int] = []
    pending = [(0, n)] if n else []
    while pending:
        start, stop = pending.pop()
        try:
            results.append(parse(start, stop))
        except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except failure:
            if stop - start == 1:
                failed.append(start)
            else:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
    return results, failed


def _join_messages(messages: pa.Array) -> tuple[memoryview, Integers]:
    """Join n messages into one, as its rows; return also the bounds of each row in it."""
    n = len(messages)
    lengths = np.diff(locate(messages)[0])
    # Before each message stands a head: the row's tag, and the message's length as a varint, which
    # takes one byte per group of seven bits.
    groups = np.ones(n, dtype=np.int64)
    for bits in range(7, int(lengths.max(initial=0)).bit_length(), 7):
        groups += lengths >= 1 << bits
    starts = np.concatenate(([0], np.cumsum(groups + 1)))
    heads = np.empty(starts[-1], dtype=np.uint8)
    heads[starts[:-1]] = _ROW_TAG
    for step in range(int(groups.max())):
        rows = np.flatnonzero(groups > step)
        more = np.where(groups[rows] > step + 1, 0x80, 0)
        heads[starts[rows] + 1 + step] = (lengths[rows] >> (7 * step)) & 0x7F | more
    buffers = [None, pa.py_buffer(starts.astype(np.int32)), pa.py_buffer(heads)]
    heads_by_row = pa.BinaryArray.from_buffers(pa.binary(), n, buffers)
    bounds, data = locate(pc.binary_join_element_wise(heads_by_row, messages, b""))
    return data.data, bounds


def _select_rows(data: memoryview, bounds: Integers, rows: Integers) -> tuple[memoryview, Integers]:
    """Keep only `rows` (increasing) of the rows in `data`."""
    runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
    content = b"".join(data[bounds[run[0]] : bounds[run[-1] + 1]] for run in runs)
    return memoryview(content), np.concatenate(([0], np.cumsum(np.diff(bounds)[rows])))


def _convert(reader: BlockReader, data: memoryview, rows: int) -> pa.Array:
    if not reader.always_rewrite:
        # If ptars refuses what Google's library accepts, it may read what that library writes.
        with contextlib.suppress(ValueError):
            return _to_rows(reader.handler, data, rows)
    block = reader.rewriter.FromString(data)
    block.DiscardUnknownFields()
    canonical = block.SerializePartialToString(deterministic=True)
    return _to_rows(reader.handler, canonical, rows)


def _to_rows(handler: Any, data: bytes | memoryview, rows: int) -> pa.Array:
    """Convert the block of `data` to an array of its rows."""
    bounds = pa.py_buffer(np.array([0, len(data)], dtype=np.int32))
    blocks = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, bounds, pa.py_buffer(data)])
    records = handler.array_to_record_batch(blocks).column(0).flatten()
    if len(records) != rows:
        raise ValueError(f"{len(records)} rows instead of {rows}")
    return records


def read_protobuf(
    reader: ProtobufReader,
    requested: RequestedFields,
    bodies: pa.Array,
    reasons: Reasons | None = None,
) -> DecodedBlock:
    """Decode n binary messages; a null becomes a row of nulls and is not malformed.

    `reasons` say which payloads are malformed already, so that they are not read; None: none is.
    """
    blocks, plans = _create_decoder(reader, requested)
    n = len(bodies)
    reasons = np.zeros(n, dtype=np.uint8) if reasons is None else reasons.copy()
    rows = np.flatnonzero(to_mask(bodies.is_valid()) & (reasons == FINE))
    parsed, fine = parse_block(blocks, bodies if len(rows) == n else bodies.take(pa.array(rows)))
    reasons[rows[~fine]] = SYNTAX
    rows = rows[fine]
    order = np.full(n, -1, dtype=np.int64)
    order[rows] = np.arange(len(rows))
    columns = [plan.read(parsed) for plan in plans.columns]
    raw = {name: [plan.read(parsed).column] for name, plan in plans.raw.items()}
    block = build_decoded_block(columns, raw, np.full(len(rows), FINE, np.uint8))
    return join_blocks(requested, [block], order, reasons)


@functools.lru_cache(maxsize=64)
def _create_decoder(
    reader: ProtobufReader, requested: RequestedFields
) -> tuple[BlockReader, Plans]:
    message, block_class = compile_reader(reader)
    plans = plan_fields(reader, requested.columns, requested.raw)
    if not plans.tree:
        return BlockReader(block_class, None), plans
    blocks = BlockReader(
        block_class,
        create_handler(message, plans.tree),
        _create_rewriter(message, plans.tree),
        _needs_rewriting(message, plans.tree),
    )
    return blocks, plans
