"""Rows as records: columns, types, and CTI rows (semantics 29.1 and 29.2)."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.errors import OptionError, SchemaRefused
from pyspark_timestream.kafka.writer.rows import (
    TaskRows,
    build_messages,
    check_record_columns,
    find_cti_source,
    split_ctis,
)

TIME = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS = {
    "key": pa.binary(),
    "value": pa.string(),
    "headers": HEADERS,
    "partition": pa.int32(),
    "timestamp": TIME,
    "cti": TIME,
}


def block(**columns: list) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, COLUMNS[name]) for name, values in columns.items()}
    )


ROW = st.one_of(
    st.tuples(st.none(), st.one_of(st.none(), st.text(max_size=3))),
    st.tuples(st.integers(-(10**15), 10**15), st.none()),
)


@settings(deadline=None)
@given(st.lists(ROW, max_size=12), st.integers(0, 12))
def test_cti_rows_are_split_off_alike_wherever_a_block_is_cut(rows, cut) -> None:
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    split = [split_ctis(block(cti=[r[0] for r in p], value=[r[1] for r in p])) for p in parts]
    values = [value for kept, _ in split for value in kept.column("value").to_pylist()]
    assert values == [value for cti, value in rows if cti is None]
    ctis = [cti_us for _, cti_us in split if cti_us is not None]
    assert max(ctis, default=None) == max((r[0] for r in rows if r[0] is not None), default=None)


def test_a_block_without_the_column_has_no_ctis() -> None:
    rows = block(value=["a", None])
    assert split_ctis(rows) == (rows, None)


def test_a_cti_row_with_anything_else_is_refused_with_the_way_out() -> None:
    mixed = block(cti=[None, 5_000_000], value=["a", "{}"])
    with pytest.raises(
        SchemaRefused, match=r"cti 1970-01-01T00:00:05Z has column 'value'.*F\.when"
    ):
        split_ctis(mixed)


def test_messages_have_every_part_of_a_record_in_order() -> None:
    stamp = datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)
    rows = block(
        key=[b"k", None], value=[None, "v"], partition=[None, 3], timestamp=[stamp, None],
        headers=[[{"key": "h", "value": None}], None],
    )  # fmt: skip
    assert build_messages(rows, "cti") == [
        {"key": b"k", "value": None, "partition": -1, "timestamp": 1_704_067_200_999,
         "headers": [("h", None)]},
        {"key": None, "value": "v", "partition": 3, "timestamp": 0, "headers": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": ["a"], "partition": [-1]}, "partition -1"),
        ({"value": ["a"], "timestamp": [0]}, "timestamp 1970-01-01T00:00:00Z"),
        ({"value": ["a"], "timestamp": [-1]}, "timestamp 1969-12-31T23:59:59.999999Z"),
        ({"value": ["a"], "headers": [[{"key": "cti", "value": b""}]]}, "header 'cti'"),
        ({"value": ["a"], "headers": [[{"key": "cti-close", "value": b""}]]}, "'cti-close'"),
        ({"value": ["a"], "headers": [[{"key": None, "value": b""}]]}, "header null"),
    ],
)
def test_a_row_that_no_record_can_be_is_refused(columns, said) -> None:
    with pytest.raises(SchemaRefused, match=said):
        build_messages(block(**columns), "cti")


def test_a_header_is_refused_only_under_the_marks_own_name() -> None:
    rows = block(value=["a"], headers=[[{"key": "cti", "value": b"x"}]])
    assert build_messages(rows, "mark")[0]["headers"] == [("cti", b"x")]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": pa.string()}, "required attribute 'value' not found: the DataFrame has key"),
        ({"value": pa.int64()}, "column 'value' is int64; accepted: STRING or BINARY"),
        ({"value": pa.string(), "key": pa.int32()}, "column 'key' is int32"),
        ({"value": pa.string(), "partition": pa.int64()}, "accepted: INT"),
        ({"value": pa.string(), "headers": pa.string()}, "ARRAY<STRUCT<key: STRING, value"),
        ({"value": pa.string(), "timestamp": pa.timestamp("us")}, "accepted: TIMESTAMP"),
        ({"value": pa.string(), "topic": pa.string()}, "column 'topic'"),
        ({"value": pa.string(), "station": pa.string()}, "'station' has no place in a record"),
    ],
)
def test_columns_that_cannot_be_a_record_are_refused(columns, said) -> None:
    with pytest.raises(SchemaRefused, match=said):
        check_record_columns(pa.schema(list(columns.items())), has_marks=True)


def test_all_columns_of_a_record_are_accepted() -> None:
    check_record_columns(pa.schema(list(COLUMNS.items())), has_marks=True)
    plain = {**COLUMNS, "topic": pa.string()}
    check_record_columns(pa.schema(list(plain.items())), has_marks=False)
    with pytest.raises(SchemaRefused, match="column 'topic' is int32; accepted: STRING"):
        check_record_columns(
            pa.schema([("value", pa.string()), ("topic", pa.int32())]), has_marks=False
        )


def test_headers_come_with_arrows_large_types_as_all_other_columns_do() -> None:
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    check_record_columns(
        pa.schema([("value", pa.large_string()), ("headers", large)]), has_marks=True
    )

    def build(key: str) -> list:
        headers = pa.array([[{"key": key, "value": b"x"}]], large)
        values = pa.array(["v"], pa.large_string())
        rows = pa.RecordBatch.from_arrays([values, headers], ["value", "headers"])
        return build_messages(rows, "cti")

    assert build("h")[0]["headers"] == [("h", b"x")]
    with pytest.raises(SchemaRefused, match="header 'cti'"):
        build("cti")


def topics_of(rows: TaskRows) -> list:
    found = []
    while each := rows.next_block():
        found.append((each.topic, [message["value"] for message in each.messages]))
    return found


def test_rows_that_name_their_topics_go_there_in_order_and_keep_it_when_they_come_again() -> None:
    blocks = [
        pa.record_batch({"value": ["1", "2", "3", "4"], "topic": ["a", "b", "a", "b"]}),
        pa.record_batch({"value": ["5"], "topic": ["a"]}),
    ]
    rows = TaskRows(None, iter(blocks), by_topic=True)
    expected = [("a", ["1", "3"]), ("b", ["2", "4"]), ("a", ["5"])]
    assert rows.has_rows()
    assert topics_of(rows) == expected
    assert rows.rewind()
    assert topics_of(rows) == expected
    assert rows.count == 5


def test_the_option_counts_for_rows_that_name_other_topics() -> None:
    some = pa.record_batch({"value": ["1", "2"], "topic": ["a", None]})
    assert topics_of(TaskRows(None, iter([some]))) == [(None, ["1", "2"])]


def test_a_row_without_a_topic_is_refused_with_the_way_out() -> None:
    some = pa.record_batch({"value": ["1", "2"], "topic": ["a", None]})
    with pytest.raises(SchemaRefused, match=r"null in column 'topic'.*set option 'topic'"):
        TaskRows(None, iter([some]), by_topic=True).has_rows()


def test_rows_without_marks_may_have_any_named_header() -> None:
    marks = [[{"key": "cti", "value": b"x"}]]
    (message,) = build_messages(block(value=["v"], headers=marks), None)
    assert message["headers"] == [("cti", b"x")]
    with pytest.raises(SchemaRefused, match="a header null"):
        build_messages(block(value=["v"], headers=[[{"key": None, "value": b"x"}]]), None)


def test_the_source_of_ctis_is_the_column_or_what_the_option_says() -> None:
    assert find_cti_source(None, ["value", "cti"], wants_marks=True) == "column"
    assert find_cti_source("column", ["value", "cti"], wants_marks=True) == "column"
    assert find_cti_source("watermark", ["value"], wants_marks=True) == "watermark"
    for cti_from, names in [(None, ["value"]), ("column", ["value"]), ("watermark", ["cti"])]:
        with pytest.raises(OptionError, match="option 'ctiFrom'"):
            find_cti_source(cti_from, names, wants_marks=True)


def test_rows_have_no_marks_only_where_no_option_asks_for_them() -> None:
    assert find_cti_source(None, ["value"], wants_marks=False) is None
    with pytest.raises(OptionError, match="to write rows without marks, leave 'writer' and"):
        find_cti_source(None, ["value"], wants_marks=True)


def test_the_size_of_a_block_has_its_keys_and_headers_and_no_cti_rows() -> None:
    headers = [[{"key": "h", "value": b"x" * 500}], None]
    keys = block(cti=[None, 5_000_000], key=[b"k" * 300, None], value=["v", None], headers=headers)
    rows = TaskRows("cti", iter([block(cti=[1], value=[None]), keys, block(value=["v"] * 9)[:2]]))
    first, second = rows.next_block(), rows.next_block()
    assert 801 < first.size_bytes < 950
    assert second.size_bytes < 50
    assert rows.next_block() is None
    assert (len(first.messages), rows.count, rows.cti_us) == (1, 3, 5_000_000)
