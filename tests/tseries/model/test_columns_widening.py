"""A wider type holds every value of the narrower one, and no other type is taken for wider."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries.errors import IncompatibleValue
from pyspark_tseries.model.columns import (
    add_fields,
    fits,
    is_readable_as,
    new_value_field,
    widen_field,
    widen_rows,
)

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
DECIMALS = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda scale: pa.decimal128(p, scale))
)
PRIMITIVES = st.one_of(
    st.sampled_from([*WHOLE, pa.float32(), pa.float64(), pa.string(), pa.bool_(), pa.date32()]),
    DECIMALS,
)


def ends(kind):
    """The values of a type that a wider one may miss: the ends of its range, and fine ones."""
    if kind in WHOLE:
        most = 2 ** (kind.bit_width - 1)
        return [-most, most - 1, 0]
    if pa.types.is_decimal(kind):
        most = Decimal(10**kind.precision - 1).scaleb(-kind.scale)
        return [most, -most, Decimal(1).scaleb(-kind.scale)]
    if kind == pa.float32():
        return [2.0**-149, 3.4028234663852886e38, -0.1, float("inf")]
    return [None]


def struct(**fields):
    return pa.struct(list(fields.items()))


def nested(inner):
    """The type `inner` at every place of a nested one."""
    part = struct(x=inner)
    return new_value_field(
        pa.field("v", struct(l=pa.list_(part), m=pa.map_(inner, part), s=struct(t=inner)))
    ).type


@given(PRIMITIVES, PRIMITIVES)
def test_a_type_fits_just_where_every_value_comes_back_equal(one, other):
    said = fits(one, other)
    assert fits(nested(one), nested(other)) == said
    if not said or one == other:
        return
    values = pa.array(ends(one), one)
    assert values.cast(other).cast(one).equals(values)
    exact = [Decimal(str(v)) if isinstance(v, int) else v for v in values.to_pylist()]
    assert [Decimal(v) if one in WHOLE else v for v in values.cast(other).to_pylist()] == exact


@given(PRIMITIVES, PRIMITIVES)
def test_no_two_types_fit_each_other(one, other):
    assert one == other or not (fits(one, other) and fits(other, one))


@given(PRIMITIVES, PRIMITIVES, PRIMITIVES)
def test_what_is_wider_than_a_wider_type_is_wider(one, other, third):
    if fits(one, other) and fits(other, third):
        assert fits(one, third)


A = pa.field("v", struct(a=pa.int32(), b=pa.string()))


@pytest.mark.parametrize(
    ("known", "wanted", "said"),
    [
        (pa.int64(), pa.int32(), "narrower.*leave it as it is"),
        (pa.float64(), pa.float32(), "narrower"),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), "does not hold all of it.*add_columns"),
        (pa.decimal128(9, 2), pa.decimal128(8, 2), "narrower"),
        (pa.int64(), pa.float64(), "does not hold all of it"),
        (pa.int32(), pa.float32(), "does not hold all of it"),
        (pa.int32(), pa.decimal128(9, 0), "does not hold all of it"),
        (pa.string(), pa.binary(), "does not hold all of it"),
        (pa.int32(), pa.string(), "does not hold all of it"),
        (pa.date32(), pa.timestamp("us"), "does not hold all of it"),
        (A.type, struct(a=pa.int32()), "lacks the field 'v.b'.*whole type"),
        (A.type, struct(b=pa.string(), a=pa.int32()), "'v.b' is at another place"),
        (A.type, struct(a=pa.int32(), c=pa.string()), "lacks the field 'v.b'"),
        (A.type, pa.int64(), "does not hold all of it"),
        (pa.list_(A.type), pa.list_(struct(a=pa.int16(), b=pa.string())), "'v.element.a' is int"),
        (pa.map_(pa.int64(), A.type), pa.map_(pa.int32(), A.type), "'v.key' is bigint"),
    ],
)
def test_what_is_not_wider_is_refused_by_name_with_the_next_step(known, wanted, said):
    with pytest.raises(IncompatibleValue, match=f"(?s){said}"):
        widen_field(pa.field("v", known), pa.field("v", wanted))


def test_a_struct_gets_fields_at_any_place_and_keeps_its_name():
    wanted = pa.field("V", struct(z=pa.date32(), a=pa.int64(), y=pa.bool_(), b=pa.string()))
    assert widen_field(A, wanted) == pa.field("v", wanted.type)


def test_fields_of_rows_are_added_at_the_end_at_every_level():
    deep = pa.list_(struct(x=struct(k=pa.int32())))
    more = pa.list_(struct(new=pa.int8(), X=struct(k=pa.int64(), m=pa.bool_())))
    grown = add_fields(pa.field("v", deep), more)
    expected = struct(x=struct(k=pa.int32(), m=pa.bool_()), new=pa.int8())
    assert grown.type == pa.list_(pa.field("element", expected))
    assert add_fields(A, pa.int64()) == A


def test_readers_take_a_missing_field_as_null_but_not_inside_a_map_and_no_other_type():
    more = struct(a=pa.int32(), b=pa.string(), c=pa.date32())
    assert is_readable_as(A.type, more)
    assert is_readable_as(pa.list_(A.type), pa.list_(more))
    assert not is_readable_as(pa.map_(pa.string(), A.type), pa.map_(pa.string(), more))
    assert not is_readable_as(pa.int32(), pa.int64())
    assert not is_readable_as(A.type, struct(a=pa.int64(), b=pa.string()))


def test_rows_are_widened_by_name_in_any_case_and_others_stay():
    rows = pa.table({"N": pa.array([1, None], pa.int32()), "t": ["a", "b"]})
    wide = widen_rows(rows, [pa.field("n", pa.int64()), pa.field("t", pa.int64())])
    assert wide.schema == pa.schema([("N", pa.int64()), ("t", pa.string())])
    assert wide.to_pydict() == rows.to_pydict()
