"""The compiled scanner reads of a JSON value what the other two ways read of it, or leaves it."""

import importlib.util
import json
import os
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timestream.builders import INSTANT
from timestream.json_texts import bits, joined, objects, odd_texts, others, scalars, space

from pyspark_timestream.kafka.decode.json import by_block
from pyspark_timestream.kafka.decode.json.by_block import (
    load_scanner,
    parse_json,
    parse_unscanned,
    scan_block,
)
from pyspark_timestream.kafka.decode.records import FINE, RequestedFields

BUILD = Path(__file__).parents[5] / "build_native.py"
GIVEN = os.environ.get("SCANNER_LIBRARY")
"""A library that somebody else has built, such as with sanitizers."""

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("b", pa.int8()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.string()),
        ("o", pa.bool_()),
        ("n", pa.decimal128(5, 2)),
        ("w", pa.decimal128(38, 18)),
        ("t", INSTANT),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
    ]
)
RAW = ("t", "s", "i", "d", "when", "edge")
FIELDS = RequestedFields(SCHEMA, RAW)


def build_script():
    spec = importlib.util.spec_from_file_location("build", BUILD)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module", autouse=True)
def scanner(tmp_path_factory):
    """The library of the present source; all its values are put back, even if it read few."""
    library = Path(GIVEN or tmp_path_factory.mktemp("scanner") / "scan_json.so")
    script = build_script()
    trouble = None if GIVEN else script.build_library(library, ["-Werror"], script.SCANNER)
    if trouble:
        pytest.skip(f"no scanner here: {trouble}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMESTREAM_NATIVE", "1")
        made = load_scanner(library)
        assert made is not None
        patch.setattr(by_block, "load_scanner", lambda: made)
        patch.setattr(by_block, "_MAX_UNSCANNED", 1.0)
        yield library


def shown(block, n):
    """Per value its columns, its raw fields and why it is malformed."""
    for column in block.columns:
        column.validate(full=True)
        assert len(column) == n
    raws = {
        name: [value for piece in pieces for value in piece.to_pylist()]
        for name, pieces in block.raw.items()
    }
    assert all(len(raw) == n for raw in raws.values())
    columns = [bits([str(v) if isinstance(v, Decimal) else v for v in column.to_pylist()])
               for column in block.columns]  # fmt: skip
    return [
        (
            [column[i] for column in columns],
            {name: raw[i] if raw[i] == raw[i] else "nan" for name, raw in raws.items()},
            int(block.reasons[i]),
        )
        for i in range(n)
    ]


def compare(values, fields=FIELDS):
    """Both ways read the same of the values; return which of them the scanner read."""
    values = values if len(values) > 1 else [*values, None]
    given_ = pa.array(values, pa.binary())
    expected = shown(parse_unscanned(fields, given_), len(values))
    assert shown(parse_json(fields, given_, 1), len(values)) == expected
    scanned = scan_block(fields, given_)
    return None if scanned is None else (~scanned.unscanned).tolist()


GOOD = {
    "i": 5,
    "b": 1,
    "d": 1.5,
    "f": 0.5,
    "s": "größer",
    "o": True,
    "n": 1.25,
    "w": "12.00000000000000001",
    "t": "2013-01-01T05:00:00Z",
    "local": "2013-01-01T05:00:00",
    "day": "2013-01-01",
    "raw": "aGk=",
    "when": 12,
    "extra": [{"a": [], "b": {}, "c": '\\" \u20ac'}, None, -1.5e3],
}

keys = st.sampled_from([*SCHEMA.names, "when"])
anything = st.recursive(
    scalars,
    lambda inner: joined(inner, "[", "]") | objects(keys | others, inner),
    max_leaves=8,
)
documents = objects(keys | others, anything)
fitting = st.dictionaries(
    keys,
    st.sampled_from(
        [None, 0, -7, 1.5, "x", "2013-01-01", True, False, 2**53, 2**53 + 1, -0.0, 1e22]
    )
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    max_size=3,
)
good = st.builds(
    lambda changes, escaped, indent: json.dumps(
        {**GOOD, **changes}, ensure_ascii=escaped, indent=indent
    ).encode(errors="surrogatepass"),
    fitting,
    st.booleans(),
    st.sampled_from([None, 1]),
)
hurt = st.builds(
    lambda value, place, cut, put: (
        value[: place % len(value)] + put + value[place % len(value) + cut :]
    ),
    good,
    st.integers(0, 10_000),
    st.integers(0, 2),
    st.binary(max_size=2)
    | st.sampled_from([b'"', b"\\", b",", b"}", b"]", b"{", b"0", b"e", b"-"]),
)
texts = st.one_of(
    good,
    hurt,
    st.tuples(space, documents, space).map("".join).map(str.encode),
    documents.map(lambda d: d[:-1].encode()),
    odd_texts,
)


@given(st.lists(texts, min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_a_value_is_read_as_without_the_scanner(values):
    compare(values)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_a_value_that_is_left_does_not_disturb_its_neighbours(odd, place):
    sound = [json.dumps(GOOD | {"i": i}, ensure_ascii=False).encode() for i in range(100)]
    compare([*sound[:place], *odd, *sound[place:]])


NESTED = RequestedFields(
    pa.schema(
        [
            ("i", pa.int64()),
            ("p.i", pa.int64()),
            ("p.q.s", pa.string()),
            ("p.q.t", INSTANT),
            ("q.d", pa.float64()),
        ]
    ),
    ("p.when", "p.q.t", "q.q.when"),
)
inner_keys = st.sampled_from(["i", "p", "q", "s", "t", "d", "when"])
nested = st.recursive(
    scalars,
    lambda inner: objects(inner_keys | others, inner) | joined(inner, "[", "]"),
    max_leaves=12,
)
sound_nested = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(0, 9),
        "p": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "i": st.none() | st.integers(),
                "when": st.integers(0, 9) | st.text(max_size=3),
                "x": st.just({"i": 1}),
                "q": st.none()
                | st.fixed_dictionaries(
                    {}, optional={"s": st.text(max_size=3), "t": st.just("2013-01-01T05:00:00Z")}
                ),
            },
        ),
        "q": st.none()
        | st.fixed_dictionaries({}, optional={"d": st.floats(-9, 9), "q": st.just({"when": 1})}),
    },
).map(json.dumps)


@given(
    st.lists(
        st.tuples(space, sound_nested | objects(inner_keys, nested), space)
        .map("".join)
        .map(str.encode),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=300, deadline=None)
def test_fields_of_objects_inside_are_read_as_without_the_scanner(values):
    compare(values, NESTED)


@pytest.mark.parametrize(
    ("value", "is_read"),
    [
        ('{"p":{"i":1,"q":{"s":"x","t":"2013-01-01T05:00:00Z"},"when":5},"q":{"d":1}}', True),
        ('{"p":{},"q":null,"i":1}', True),
        ('{ "p" : { "q" : { } , "i" : null } }', True),
        ('{"p":{"p":{"i":"x"},"i":2},"i":1,"x":{"p":{"i":3}}}', True),
        ('{"p":5}', False),
        ('{"p":[{"i":1}]}', False),
        ('{"p":{"q":"x"}}', False),
        ('{"p":{"i":1},"p":{"i":2}}', False),
        ('{"p":{"i":1,"i":2}}', False),
        ('{"p":{"i":1.5}}', False),
        ('{"p":{"i":1}', False),
        ('{"p":{"i":1},}', False),
        ('{"p":nul}', False),
    ],
)
def test_objects_inside_are_read_where_they_are_plain(value, is_read):
    assert compare([value.encode(), b"{}"], NESTED) == [is_read, True]


def test_the_same_name_inside_another_object_is_another_field():
    # The scanner remembers names by their places, so both objects have them in the same ones.
    values = [b'{"p":{"i":1}}', b'{"q":{"i":2}}', b'{"i":{"i":3}}', b'{"i":4}', b'{"p":{"i":5}}']
    assert compare(values, NESTED) == [True, True, False, True, True]


digits = st.integers(0, 10**19).map(str) | st.integers(0, 10**6).map(str)
literals = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e9, 1e9).map(repr),
    st.builds(
        lambda sign, whole, fraction, power: f"{sign}{whole}{fraction}{power}",
        st.sampled_from(["", "-"]),
        digits,
        st.just("") | digits.map(lambda d: f".{d}") | st.just(".000000"),
        st.just("") | st.integers(-40, 40).map(lambda n: f"e{n}"),
    ),
    # Half way between two doubles or floats, and one digit beside.
    st.builds(
        lambda half, power, beside: str((2 * half + 1) * 2**power + beside),
        st.integers(2**52, 2**53 - 1),
        st.integers(0, 9),
        st.integers(-1, 1),
    ),
    st.builds(
        lambda half, power: f"{(2 * half + 1) * 5**power}e-{power}",
        st.integers(2**23, 2**24),
        st.integers(1, 12),
    ),
)


@given(st.lists(literals, min_size=1, max_size=50))
@settings(max_examples=150, deadline=None)
def test_numbers_are_rounded_once_and_to_the_nearest(numbers):
    fields = RequestedFields(pa.schema([(name, SCHEMA.field(name).type) for name in "dfnwib"]))
    for name in "dfnwib":
        compare([f'{{"{name}":{number}}}'.encode() for number in numbers], fields)
    (column,) = parse_json(
        RequestedFields(pa.schema([("d", pa.float64())])),
        pa.array([f'{{"d":{number}}}'.encode() for number in ["0", *numbers]]),
        1,
    ).columns
    assert [repr(value) for value in column.to_pylist()[1:]] == [repr(float(n)) for n in numbers]


@pytest.mark.parametrize(
    "value",
    [
        json.dumps(GOOD, ensure_ascii=False),
        json.dumps(GOOD, ensure_ascii=False, indent=2),
        "{}",
        " {\t}\r\n",
        '{"i":null,"d":12,"f":1e-3,"n":"5","w":-1,"when":"x"}',
        '{"d":0.1234567890123456789,"f":16777217}',
        '{"d":12345678901234567890e-1}'.replace("890e", "e"),
        '{"extra":"\\ud800 \\n","x":{"":[{"i":{}}]},"y":' + "[" * 60 + "]" * 60 + "}",
    ],
)
def test_what_is_plain_is_read_by_the_scanner(value):
    assert compare([value.encode()] * 2) == [True, True]


@pytest.mark.parametrize(
    "value",
    [
        '{"i":1,"i":1}',
        '{"\\u0069":1}',
        '{"s":"\\n"}',
        '{"i":1.0}',
        '{"i":9223372036854775808}',
        '{"b":128}',
        '{"d":1e400}',
        '{"d":"NaN"}',
        '{"n":1.234}',
        '{"n":1000}',
        '{"s":1}',
        '{"o":0}',
        '{"i":[1]}',
        '{"x":01}',
        '{"x":1.}',
        '{"x":+1}',
        '{"x":tru}',
        '{"x":"\\x"}',
        '{"x":"\\u12g4"}',
        '{"x":[1,]}',
        '{"x":[1}}',
        '{"x":{"a"}}',
        '{"x":' + "[" * 61 + "]" * 61 + "}",
        '{"x":"\x01"}',
        '{"x":"a longer text with \x1f inside","y":"another text"}',
        '{"i":1}{}',
        '{"i":1,}',
        '{"i":1',
        "[]",
        "",
    ],
)
def test_what_is_odd_is_left(value):
    assert compare([value.encode(), b"{}"]) == [False, True]


@pytest.mark.parametrize(
    "broken", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
)
@pytest.mark.parametrize("place", ['{{"s":"{}"}}', '{{"{}":1}}', '{{"x":["{}"]}}'])  # fmt: skip
def test_bytes_that_are_no_utf8_are_left_wherever_they_are(broken, place):
    before, after = place.format("|").encode().split(b"|")
    value = before + broken + after
    # The second one has the same name as the first one.
    assert compare([value, value, before + "é".encode() + after]) == [False, False, True]


def test_nulls_and_slices_are_read_from_their_places():
    sound = [json.dumps(GOOD | {"i": i}, ensure_ascii=False).encode() for i in range(90)]
    values = [None if i % 5 == 0 else value for i, value in enumerate(sound)]
    sliced = pa.array(values, pa.binary()).slice(7, 80)
    block = parse_json(FIELDS, sliced)
    expected = [None if i % 5 == 0 else i for i in range(7, 87)]
    assert block.columns[0].to_pylist() == expected
    assert block.raw["i"][0].to_pylist() == expected
    assert (block.reasons == FINE).all()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", "3"], pa.float64()),
        (["null", "1", "2"], pa.int64()),
        (["null", '"x"', '"y"'], pa.string()),
        (["1.5", "9007199254740991"], pa.float64()),
    ],
)
def test_a_raw_field_has_one_type_as_long_as_no_digit_is_lost(values, kind):
    fields = RequestedFields(pa.schema([]), ("when",))
    given_ = [f'{{"when":{value}}}'.encode() for value in values]
    assert compare(given_, fields) == [True] * len(values)
    assert [piece.type for piece in parse_json(fields, pa.array(given_), 1).raw["when"]] == [kind]


def test_a_whole_number_that_a_double_does_not_hold_keeps_its_digits():
    fields = RequestedFields(pa.schema([]), ("when",))
    values = [f'{{"when":{value}}}'.encode() for value in (2**53 + 1, "1.5", 3, "2.5", 2**53 + 3)]
    assert compare(values, fields) == [True, False, True, False, True]
    values.reverse()
    assert compare(values[1:], fields) == [True, True, True, False]


def test_a_column_without_nulls_has_no_bits_and_texts_have_no_room_left():
    values = pa.array([b'{"i":1,"s":"abc"}'] * 50)
    scanned = scan_block(FIELDS, values)
    assert scanned.fields[("i",)].buffers()[0] is None
    assert scanned.fields[("s",)].buffers()[2].size == 150


@pytest.mark.parametrize(
    "fields",
    [
        RequestedFields(pa.schema([("p", pa.struct([("x", pa.int64())]))])),
        RequestedFields(pa.schema([("p", pa.string()), ("p.x", pa.int64())])),
        RequestedFields(pa.schema([("l", pa.list_(pa.int64()))])),
        RequestedFields(pa.schema([("b", pa.int8())]), ("b",)),
        RequestedFields(pa.schema([("a", pa.int64())]), ("a.b",)),
        RequestedFields(pa.schema([(f"c{i}", pa.int8()) for i in range(65)])),
        RequestedFields(pa.schema([(f"p.c{i}", pa.int8()) for i in range(64)])),
    ],
)
def test_other_fields_are_none_of_the_scanners(fields):
    assert scan_block(fields, pa.array([b"{}"] * 50)) is None


def test_without_columns_the_form_is_judged_by_the_scanner_too():
    assert compare([b'{"a":1}', b"{a}", b"{}"], RequestedFields(pa.schema([]))) == [
        True, False, True,
    ]  # fmt: skip


def test_a_block_of_which_little_can_be_scanned_is_given_up(monkeypatch):
    monkeypatch.setattr(by_block, "_MAX_UNSCANNED", 0.25)
    odd, plain = [b'{"i":"x"}'], [b'{"i":1}']
    assert scan_block(FIELDS, pa.array(odd * 33 + plain * 1_000)) is None
    assert scan_block(FIELDS, pa.array(plain * 70 + odd * 30)) is None
    assert scan_block(FIELDS, pa.array(plain * 75 + odd * 25)) is not None


def test_many_fields_in_any_order_are_found():
    names = [f"f{i}" for i in range(64)]
    fields = RequestedFields(pa.schema([(name, pa.int32()) for name in names]))
    dice = np.random.default_rng(1)
    rows = [
        {name: int(i) for i, name in enumerate(dice.permutation(names)[:40])} for _ in range(50)
    ]
    rows = [row | {f"x{i}": i for i in range(80)} for row in rows]
    assert all(compare([json.dumps(row).encode() for row in rows], fields))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_install_with_a_compiler_uses_the_scanner(monkeypatch):
    # Else all tests would pass by the slower ways.
    monkeypatch.delenv("TIMESTREAM_NATIVE", raising=False)
    assert load_scanner.__wrapped__() is not None, "run make, which installs it again"


def test_a_user_may_do_without_it(monkeypatch, scanner):
    monkeypatch.setenv("TIMESTREAM_NATIVE", "0")
    assert load_scanner.__wrapped__(scanner) is None
    monkeypatch.setenv("TIMESTREAM_NATIVE", "1")
    with pytest.raises(RuntimeError, match="is 1, but the JSON scanner cannot be used"):
        load_scanner.__wrapped__(scanner.with_name("none.so"))
