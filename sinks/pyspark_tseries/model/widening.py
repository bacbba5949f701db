"""Which types of value columns are wider than others, and rows in a wider type (semantics 35.4).

A wider type holds every value of the narrower one, equal. The rules are those of Delta's feature
`typeWidening` for types, and of Delta's schema evolution for fields of structs.
"""

from collections.abc import Sequence

import pyarrow as pa

from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.model.columns import type_name

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""The whole numbers, narrowest first, and the most digits that their numbers have."""

_DOUBLES = (pa.float32(), pa.int8(), pa.int16(), pa.int32())
"""A double holds every number of these types."""


def fits(kind: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether every value of the type `kind` is one of the type `stored`, too."""
    return _find_misfit(kind, stored, "") is None


def widen_field(known: pa.Field, wanted: pa.Field) -> pa.Field:
    """Return the value column `known` with the type of `wanted`, which is as wide or wider.

    Raises:
        IncompatibleValue: it is not; the error names what does not fit and the next step.
    """
    misfit = _find_misfit(known.type, wanted.type, known.name)
    if misfit is not None:
        raise IncompatibleValue(
            f"column '{known.name}' cannot become {type_name(wanted.type)}: {misfit[0]}",
            "a type that holds every value of the column: for whole numbers more bits, double (up "
            "to int) or a decimal, for float double, for decimals more digits before and after "
            "the point, for structs more fields",
            misfit[1],
        )
    return known.with_type(wanted.type)


def add_fields(known: pa.Field, incoming: pa.DataType) -> pa.Field:
    """Return `known` with the fields of structs that only the type `incoming` has, at the end."""
    return known.with_type(_unite(known.type, incoming))


_CAST = "add a column of the new type with add_columns, and write to that from now on"
_NAME = "give the whole type: the present fields in their order, then the new ones"


def _find_misfit(old: pa.DataType, new: pa.DataType, path: str) -> tuple[str, str] | None:
    """Return why `new` does not hold every value of `old`, and the next step; None if it does."""
    types = pa.types
    if old == new:
        return None
    if types.is_struct(old) and types.is_struct(new):
        return _find_field_misfit(old, new, path)
    if types.is_list(old) and types.is_list(new):
        return _find_misfit(old.value_type, new.value_type, f"{path}.element")
    if types.is_map(old) and types.is_map(new):
        key = _find_misfit(old.key_type, new.key_type, f"{path}.key")
        return key or _find_misfit(old.item_type, new.item_type, f"{path}.value")
    if _is_wider(old, new):
        return None
    if _is_wider(new, old):
        why = f"'{path}' is {type_name(old)} now, and {type_name(new)} is narrower"
        return why, "leave it as it is: it takes narrower values as well"
    return f"'{path}' is {type_name(old)}, and {type_name(new)} does not hold all of it", _CAST


def _find_field_misfit(old: pa.StructType, new: pa.StructType, path: str) -> tuple[str, str] | None:
    names = [field.name for field in new]
    place = -1
    for field in old:
        if field.name not in names:
            return f"the new type lacks the field '{path}.{field.name}'", _NAME
        if names.index(field.name) < place:
            return f"the field '{path}.{field.name}' is at another place", _NAME
        place = names.index(field.name)
        misfit = _find_misfit(field.type, new[place].type, f"{path}.{field.name}")
        if misfit is not None:
            return misfit
    return None


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    types = pa.types
    if types.is_decimal(new):
        room = new.precision - new.scale
        if old in _DIGITS:
            return bool(room >= _DIGITS[old] and new.scale >= 0)
        more = types.is_decimal(old) and room >= old.precision - old.scale
        return bool(more and new.scale >= old.scale)
    if new == pa.float64():
        return old in _DOUBLES
    return bool(old in _DIGITS and new in _DIGITS and _DIGITS[old] <= _DIGITS[new])


def _unite(old: pa.DataType, other: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_struct(old) and types.is_struct(other):
        theirs = {field.name.lower(): field for field in other}
        ours = {field.name.lower() for field in old}
        both = [
            field.with_type(_unite(field.type, theirs[field.name.lower()].type))
            if field.name.lower() in theirs
            else field
            for field in old
        ]
        return pa.struct([*both, *(field for name, field in theirs.items() if name not in ours)])
    if types.is_list(old) and types.is_list(other):
        return pa.list_(pa.field("element", _unite(old.value_type, other.value_type)))
    if types.is_map(old) and types.is_map(other):
        key = _unite(old.key_type, other.key_type)
        return pa.map_(key, _unite(old.item_type, other.item_type))
    return old


def is_readable_as(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether every reader of Delta takes values `stored` in a file as of type `wanted`.

    A field that a struct in a file lacks is null to all of them, but not one inside a map; and no
    other type may differ, without a feature that many readers lack.
    """
    types = pa.types
    if types.is_struct(stored) and types.is_struct(wanted):
        kinds = {field.name: field.type for field in wanted}
        return bool(len(stored)) and all(
            field.name in kinds and is_readable_as(field.type, kinds[field.name])
            for field in stored
        )
    if types.is_list(stored) and types.is_list(wanted):
        return is_readable_as(stored.value_type, wanted.value_type)
    if types.is_map(stored) and types.is_map(wanted):
        same = stored.key_type == wanted.key_type, stored.item_type == wanted.item_type
        return all(same)
    return bool(stored == wanted)


def widen_rows(rows: pa.Table, values: Sequence[pa.Field]) -> pa.Table:
    """Return `rows`, with those of its columns that `values` have in a wider type converted."""
    kinds = {field.name.lower(): field.type for field in values}
    for place, field in enumerate(rows.schema):
        kind = kinds.get(field.name.lower(), field.type)
        if kind != field.type and fits(field.type, kind):
            rows = rows.set_column(place, field.with_type(kind), rows[place].cast(kind))
    return rows
