"""JSON values as columns: the result for a value never depends on its neighbours."""

import decimal
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT
from timestream.json_texts import bits, joined, objects, odd_texts, others, scalars, space

from pyspark_timestream.kafka.decode.columns import find_unsupported_type
from pyspark_timestream.kafka.decode.json import by_block
from pyspark_timestream.kafka.decode.json.by_block import (
    MAX_SINGLE_VALUES,
    parse_json,
    parse_unscanned,
)
from pyspark_timestream.kafka.decode.records import RequestedFields

PLACE = pa.struct([("x", pa.int32()), ("seen", INSTANT)])
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("b", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("o", pa.bool_()),
        ("n", pa.decimal128(5, 2)),
        ("t", INSTANT),
        ("day", pa.date32()),
        ("p", PLACE),
        ("l", pa.list_(pa.int64())),
        ("ps", pa.list_(PLACE)),
        ("ts", pa.list_(INSTANT)),
        ("bs", pa.list_(pa.binary())),
    ]
)
RAW = ("t", "s", "i", "d", "when", "edge")
FIELDS = RequestedFields(SCHEMA, RAW)


def rows(values, fields=FIELDS, max_singles=MAX_SINGLE_VALUES):
    """Per value: its columns, its raw fields with their types, and whether it is malformed."""
    block = parse_json(fields, pa.array(values, pa.binary()), max_singles)
    columns = [column.to_pylist() for column in block.columns]
    assert [column.type for column in block.columns] == fields.columns.types
    for column in block.columns:
        column.validate(full=True)
        assert len(column) == len(values)
    raws = {
        name: [v for piece in pieces for v in piece.to_pylist()]
        for name, pieces in block.raw.items()
    }
    assert all(len(raw) == len(values) for raw in raws.values())
    assert block.malformed.dtype == np.bool_
    return [
        (
            [bits(column[i]) for column in columns],
            {name: raw[i] if raw[i] == raw[i] else "nan" for name, raw in raws.items()},
            bool(block.malformed[i]),
        )
        for i in range(len(values))
    ]


def with_few(count, values, fields=FIELDS):
    return rows(values, fields, count)


keys = st.sampled_from(["i", "b", "d", "f", "s", "o", "n", "t", "day", "p", "l", "ps", "ts", "bs"])
place = objects(st.sampled_from(["x", "seen", "y"]), scalars)
nested = st.one_of(scalars, place, joined(scalars | place, "[", "]"))
documents = objects(keys | others, nested)
GOOD = {
    "i": 5,
    "b": 1,
    "d": 1.5,
    "f": 0.5,
    "s": "x",
    "o": True,
    "n": 1.25,
    "t": "2013-01-01T05:00:00Z",
    "day": "2013-01-01",
    "p": {"x": 1, "seen": "2013-01-01"},
    "l": [1, 2],
    "ps": [{"x": 1}, None],
    "ts": ["2013-01-01"],
    "bs": ["aGk=", None],
    "when": 12,
}


def good_but(changes):
    return json.dumps({**GOOD, **changes}).encode()


fine = st.dictionaries(
    keys | st.just("when"),
    st.sampled_from([None, 0, 7, 1.5, "x", "2013-01-01", True, [], [3], {"x": 3}, 2**53 + 1]),
    max_size=2,
).map(good_but)
texts = st.one_of(
    fine,
    fine,
    st.tuples(space, documents, space).map("".join).map(str.encode),
    documents.map(lambda d: d[:-1].encode()),
    st.tuples(documents, documents).map(lambda two: "".join(two).encode()),
    documents.map(lambda d: (d + "\0}").encode()),
    odd_texts,
    st.binary(max_size=6).map(lambda b: b"{" + b + b"}"),
)


@given(st.lists(texts, max_size=5))
@settings(max_examples=120, deadline=None)
def test_a_value_becomes_the_same_alone_and_beside_any_others(values):
    alone = [row for value in values for row in with_few(10**6, [value])]
    for few_ in (1, 2, 10**6):
        assert with_few(few_, values) == alone
    # Only Arrow gets the good values twice.
    twice = [value for value in values for _ in (1, 2)]
    assert with_few(1, twice)[::2] == alone


@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_a_long_block_of_good_values_is_not_disturbed_by_a_bad_one(bad, place):
    good = [good_but({"i": i}) for i in range(100)]
    expected = rows(good)
    found = rows([*good[:place], *bad, *good[place:]])
    assert found[:place] + found[place + len(bad) :] == expected
    assert found[place : place + len(bad)] == [row for value in bad for row in rows([value])]


@pytest.mark.thorough
@pytest.mark.parametrize(("every", "most_calls"), [(1, 12), (7, 40), (100, 400), (1_000, 120)])
@pytest.mark.parametrize("bad", [{"i": "x"}, {"d": [1]}])
def test_many_bad_values_do_not_make_arrow_start_over_for_each(every, most_calls, bad, monkeypatch):
    calls, parse_joined = [], by_block._parse_joined
    monkeypatch.setattr(
        by_block, "_parse_joined", lambda *given: calls.append(1) or parse_joined(*given)
    )
    fields = RequestedFields(pa.schema([("i", pa.int64()), ("d", pa.float64())]))
    good = [{"i": i, "d": i / 8} for i in range(20_000)]
    values = [json.dumps(g | bad if g["i"] % every == 0 else g).encode() for g in good]
    block = parse_unscanned(fields, pa.array(values, pa.binary()))
    assert block.malformed.tolist() == [i % every == 0 for i in range(len(good))]
    expected = [None if name in bad and i % every == 0 else g[name] for i, g in enumerate(good)
                for name in ("i", "d")]  # fmt: skip
    found = zip(*(column.to_pylist() for column in block.columns), strict=True)
    assert [value for row in found for value in row] == expected
    assert len(calls) <= most_calls


@given(
    st.lists(
        st.sampled_from(
            [
                b"1999",
                b"1999.0",
                b"2.5",
                b"1e3",
                b"9007199254740993",
                b'"7"',
                b"null",
                b"true",
                b"{}",
                b"[1]",
                b"1e400",
            ]
        ),
        max_size=6,
    )
)
@settings(deadline=None)
def test_raw_fields_of_mixed_types_keep_their_values(literals):
    values = [b'{"when":' + literal + b"}" for literal in literals]
    for few_ in (1, 10**6):
        for (_, raw, malformed), literal in zip(
            with_few(few_, values, RequestedFields(pa.schema([]), ("when",))), literals, strict=True
        ):
            value = json.loads(literal)
            is_time = isinstance(value, str | int | float) and not isinstance(value, bool)
            assert raw["when"] == (value if is_time else None)
            assert not malformed


@pytest.mark.parametrize("count", [1, 10**6])
def test_a_field_of_another_type_is_null_and_the_others_stay(count):
    value = good_but({"b": 300, "p": {"x": 1, "seen": "never"}})
    (columns, raw, malformed), second = with_few(count, [value] * 2)
    assert second == (columns, raw, malformed)
    by_name = dict(zip(SCHEMA.names, columns, strict=True))
    assert malformed
    assert (by_name["b"], by_name["p"]) == (None, {"x": 1, "seen": None})
    assert (by_name["i"], by_name["l"], by_name["n"]) == (5, [1, 2], decimal.Decimal("1.25"))
    assert raw == {"t": GOOD["t"], "s": "x", "i": 5, "d": 1.5, "when": 12, "edge": None}


@pytest.mark.parametrize("count", [1, 10**6])
def test_a_null_value_is_a_row_of_nulls_and_not_malformed(count):
    nothing = [None] * len(SCHEMA)
    no_raw = dict.fromkeys(RAW)
    assert with_few(count, [None, b"{}", b"", b"nonsense"]) == [
        (nothing, no_raw, False),
        (nothing, no_raw, False),
        (nothing, no_raw, True),
        (nothing, no_raw, True),
    ]


@pytest.mark.parametrize("count", [1, 10**6])
@pytest.mark.parametrize(
    "broken",
    [
        b'{"i":5,"p":{"x":1',
        b'{"i":5,"p":{"x":}}',
        b'{"i":5,"l":[1',
        b'{"i":5,"l":[1,}',
        b'{"i":5,"s":{"a',
    ],
)
def test_json_that_is_broken_inside_a_nested_value_keeps_nothing(count, broken):
    lost = ([None] * len(SCHEMA), dict.fromkeys(RAW), True)
    assert with_few(count, [broken]) == [lost]
    good = good_but({})
    (first,) = with_few(count, [good])
    assert with_few(count, [good, broken, good]) == [first, lost, first]


@pytest.mark.parametrize(
    "inside",
    [
        "[" * 100_000 + "]" * 100_000,
        "[" * 2_000 + "]" * 2_000,
        '{"a":' * 3_000 + "1" + "}" * 3_000,
        "1" * 5_000,
        "-" + "1" * 5_000,
    ],
    ids=["100000 deep", "2000 deep", "3000 objects", "5000 digits", "negative"],
)
def test_extreme_values_are_malformed_and_stop_nothing(inside):
    value = b'{"i":1,"extra":' + inside.encode() + b"}"
    # The depth that Python's own parser reads grew from 1,000 in 3.11 to 10,000 in 3.13.
    extreme = not is_read_by_python(value)
    assert extreme or len(inside) < 30_000
    good = good_but({})
    for count in (1, 10**6):
        assert [row[2] for row in with_few(count, [value])] == [extreme]
        # The first value tells a block's types, so a good one goes first too.
        assert [row[2] for row in with_few(count, [good, value] * 2)] == [False, extreme] * 2
        assert [row[2] for row in with_few(count, [value, good] * 2)] == [extreme, False] * 2


def is_read_by_python(value):
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True


def test_a_large_document_is_no_extreme_one():
    value = json.dumps({"i": 1, "extra": [{"k": [n]} for n in range(500)], "s": "9" * 900})
    (columns, _, malformed), _ = with_few(1, [value.encode()] * 2)
    assert (columns[0], malformed) == (1, False)


@pytest.mark.parametrize("count", [1, 10**6])
@pytest.mark.parametrize(
    ("literal", "expected"),
    [("999.99", "999.99"), ("1000", None), ("1.230", "1.23"), ("1.235", "1.24"), ('"5"', "5.00"),
     ("999.995", None), ("1e40", None)],
)  # fmt: skip
def test_a_decimal_must_fit_its_precision_and_scale(count, literal, expected):
    fields = RequestedFields(pa.schema([("n", pa.decimal128(5, 2))]))
    ([found], _, malformed), _ = with_few(count, [f'{{"n":{literal}}}'.encode()] * 2, fields)
    assert found == (expected and decimal.Decimal(expected))
    assert malformed == (expected is None)


long_numbers = st.integers(1, 38).flatmap(lambda n: st.integers(10 ** (n - 1), 10**n - 1))


@given(
    st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p))),
    st.lists(
        st.builds(
            lambda number, sign, power: f"{sign}{number}{power}",
            long_numbers,
            st.sampled_from(["", "-"]),
            st.just("") | st.integers(-40, 40).map("e{}".format),
        ),
        min_size=1,
        max_size=5,
    ),
)
@example((38, 18), ["82401564235628967044267"])
@example((38, 18), ["30e28"])
@settings(deadline=None)
def test_a_decimal_with_too_many_digits_is_bad_and_no_other_number(shape, literals):
    # Arrow's parser multiplies the number until its bits run over.
    fields = RequestedFields(pa.schema([("n", pa.list_(pa.decimal128(*shape)))]))
    values = [f'{{"n":[{literal}]}}'.encode() for literal in literals]
    for value in values:
        given_ = pa.array([value, value])
        together, alone = (parse_unscanned(fields, given_, n) for n in (1, 2))
        assert together.columns[0].equals(alone.columns[0])


TINY = """
import sys, pyarrow as pa
from pyspark_timestream.kafka.decode.json.by_block import parse_json, parse_unscanned
from pyspark_timestream.kafka.decode.records import RequestedFields

many = pa.list_(pa.decimal128(38, 18))
fields = RequestedFields(pa.schema([("n", pa.decimal128(5, 2)), ("l", many)]))
for value in sys.stdin.buffer.read().splitlines():
    for parse in (parse_json, parse_unscanned):
        columns = parse(fields, pa.array([value] * 40)).columns
        assert not any(column.null_count for column in columns), value
        assert not any(columns[0].to_pylist() + sum(columns[1].to_pylist(), [])), value
"""


@pytest.mark.thorough
def test_a_number_of_a_billion_places_ends_no_process():
    """Arrow's parser of decimals reads memory that is not its own."""
    numbers = ["1e-99999999", "-0.5E-999999999", "0e-999999999", "5.e-99999999"]
    literals = [*numbers[:3], *(f'"{number}"' for number in numbers)]
    literals += [r'"1\u0065-99999999"', r'"\u0031e-99999999"', r'"1E\u002D99999999"']
    values = [f'{{"n": {literal},"l":[{literal}]}}' for literal in literals]
    subprocess.run([sys.executable, "-c", TINY], input="\n".join(values).encode(), check=True)


def test_without_fields_only_the_form_is_judged():
    for count in (1, 10**6):
        found = with_few(count, [b'{"a":1}', b"{a}", b"{}"], RequestedFields(pa.schema([])))
        assert [row[2] for row in found] == [False, True, False]


def test_no_values_give_empty_columns_of_the_right_type():
    assert rows([]) == []


def test_a_sliced_column_of_values_is_read_from_its_slice():
    values = pa.array([good_but({"i": i}) for i in range(90)], pa.binary()).slice(7, 80)
    block = parse_json(FIELDS, values)
    assert block.columns[0].to_pylist() == list(range(7, 87))


@pytest.mark.parametrize(
    ("data_type", "bad"),
    [
        (pa.duration("us"), pa.duration("us")),
        (pa.map_(pa.int64(), pa.string()), pa.map_(pa.int64(), pa.string())),
        (pa.map_(pa.string(), pa.binary()), None),
        (pa.list_(pa.struct([("a", pa.month_day_nano_interval())])), pa.month_day_nano_interval()),
        (SCHEMA.field("ps").type, None),
    ],
)
def test_a_type_that_json_cannot_fill_is_found_wherever_it_is(data_type, bad):
    assert find_unsupported_type(data_type) == bad
