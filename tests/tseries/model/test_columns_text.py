"""Text that is not UTF-8 is refused by series and column, before anything is written."""

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tseries import IncompatibleValue, InvalidQuery, TimeSeries, describe
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import check_text

LISTS = pa.list_(pa.string())
NESTED = pa.struct([("m", pa.map_(pa.string(), LISTS)), ("n", pa.int64())])
VALUES = {"text": pa.string(), "list": LISTS, "nested": NESTED, "bytes": pa.binary()}


def as_text(values, offset=0):
    """An array of texts of these bytes, with no check of them."""
    return pa.array([b"x"] * offset + values, pa.binary()).view(pa.string()).slice(offset)


def lists(texts):
    return pa.ListArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), texts)


def nested(texts, keys=None):
    keys = as_text([b"k"] * len(texts)) if keys is None else keys
    offsets = pa.array(range(len(texts) + 1), pa.int32())
    maps = pa.MapArray.from_arrays(offsets, keys, lists(texts))
    return pa.StructArray.from_arrays([maps, pa.nulls(len(texts), pa.int64())], names=["m", "n"])


GOOD = [b"a", "ü𠮷".encode(), b""]
BAD = [b"a", b"sp\xff\xfem", b"b"]


@pytest.fixture
def series(tmp_path):
    return TimeSeries.create(tmp_path / "s", VALUES, "unlimited", "me", auto_compact=False)


def rows(**columns):
    some = {
        "series": pa.array(["s0", "s1", "s2"]),
        "text": as_text(GOOD),
        "list": lists(as_text(GOOD)),
        "nested": nested(as_text(GOOD)),
        "bytes": pa.array(BAD, pa.binary()),
    }
    return pa.table({**some, **columns})


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("text", as_text(BAD), r"series 's1': column 'text' holds b'sp\\xff\\xfem'"),
        ("text", as_text(BAD, offset=5), r"series 's1': column 'text' holds b'sp"),
        ("text", as_text(BAD).cast(pa.large_string()), "series 's1': column 'text'"),
        ("list", lists(as_text(BAD)), "series 's1': column 'list'"),
        ("nested", nested(as_text(BAD)), "series 's1': column 'nested'"),
        ("nested", nested(as_text(GOOD), as_text(BAD)), "series 's1': column 'nested'"),
        ("series", as_text(BAD), r"series b'sp\\xff\\xfem': column 'series' holds"),
        ("author", as_text(BAD), "series 's1': column 'author'"),
        ("text", as_text([b"a"] * 2 + [b"\xed\xa0\xbd"]), "series 's2': column 'text'"),
        (
            "text",
            as_text([b"x" * 99 + b"\x80" + b"y" * 99, b"", b""]),
            "series 's0'.*x{12}.*y{11}'",
        ),
    ],
)
def test_append_many_of_invalid_utf8_names_its_column_and_writes_nothing(
    series, tmp_path, column, values, said
):
    series.append_many(rows())
    before = sorted((tmp_path / "s").rglob("*.parquet"))
    with pytest.raises(IncompatibleValue, match=said) as error:
        series.append_many(rows(**{column: values}))
    assert "make_valid_utf8. Nothing of the batch is stored" in str(error.value)
    assert sorted((tmp_path / "s").rglob("*.parquet")) == before
    assert describe(str(tmp_path / "s"))["events"] == 3
    assert series.verify() == []
    events = DeltaTable(tmp_path / "s").to_pyarrow_table()  # noqa: F841 for the query
    assert duckdb.sql("SELECT count(text) FROM events").fetchall() == [(3,)]


def test_bytes_that_are_no_text_are_values_of_a_binary_column(series):
    series.append_many(rows())
    (event,) = series.range_query().select_from("s1").events
    assert event.value["bytes"] == BAD[1]


def test_half_a_surrogate_pair_is_no_text_anywhere(series, tmp_path):
    half = "\ud800"
    for wrong in (
        lambda: series.append(half, {"text": "a"}),
        lambda: series.append("a", {"text": half}),
        lambda: series.append("a", {"list": [half]}),
    ):
        with pytest.raises(IncompatibleValue, match="ud800"):
            wrong()
    with pytest.raises(InvalidQuery, match="ud800"):
        series.range_query().select_from(half)
    with pytest.raises(ValueError, match=r"author '.ud800' is not a valid text"):
        TimeSeries.open(tmp_path / "s", author=half)
    with pytest.raises(ValueError, match="is not a name with a set"):
        series.set_policy({half: ["read"]})
    assert describe(str(tmp_path / "s"))["events"] == 0


def test_verify_names_a_file_that_holds_broken_text_already(series, tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark_tseries.write.rows.check_text", lambda *_: None)
    series.append_many(rows(text=as_text(BAD)))
    said, *_ = map(str, verify(str(tmp_path / "s")))
    assert "Invalid UTF8" in said
    assert "series 's0' to 's2'" in said


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=8), st.integers(0, 3))
def test_a_text_is_refused_exactly_where_python_cannot_read_it(texts, offset):
    batch = pa.record_batch({"series": pa.array(["a"] * len(texts)), "t": as_text(texts, offset)})

    def decodes():
        try:
            return all(isinstance(text.decode(), str) for text in texts)
        except UnicodeDecodeError:
            return False

    if decodes():
        check_text(batch, ["series", "t"], "series", None)
    else:
        with pytest.raises(IncompatibleValue, match="'a': column 't'"):
            check_text(batch, ["series", "t"], "series", None)
