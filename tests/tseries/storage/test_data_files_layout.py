"""For any layout of a file, its events come back, and every row group has its bounds."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tseries.builders import staged

from pyspark_tseries import TimeSeries
from pyspark_tseries.model.commits import CommitMetadata
from pyspark_tseries.model.series_index import SeriesIndex
from pyspark_tseries.storage.data_files import cut_groups, write_events
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.write.numbering import build_events, number_rows

PRUNED = ("series", "sequence", "timestamp", "author", "commit")


def events(rows, series=5, author=None, values=None):
    given = staged(*((f"s{row % series:05}", row) for row in range(rows)), authors=[author] * rows)
    if values is not None:
        given = given.set_column(given.num_columns - 1, "value", values)
    names, stamps = (given[name].combine_chunks() for name in ("series", "timestamp"))
    numbered = number_rows(names, stamps, SeriesIndex(), "fail", 0)
    return build_events(given, numbered, CommitMetadata(None, 7, 5), "me")


def written(place, table, *group_rows):
    place.mkdir(exist_ok=True)
    file = write_events(parse_location(str(place)), "kind=event/a.parquet", table, *group_rows)
    return pq.ParquetFile(place / file.path)


def column(file, name, group=0):
    return file.metadata.row_group(group).column(file.schema_arrow.names.index(name))


@pytest.mark.parametrize("author", [None, "him"])
@pytest.mark.parametrize(
    ("rows", "series", "group"),
    [(1, 1, 10_000), (64, 1, 10_000), (10_001, 5, 10_000), (25_001, 5, 3_333), (900, 700, 7)],
)
def test_events_come_back_and_each_row_group_has_its_bounds(tmp_path, rows, series, group, author):
    table = events(rows, series, author)
    file = written(tmp_path, table, group)
    assert file.read().equals(table.cast(file.schema_arrow))
    groups = range(file.metadata.num_row_groups)
    assert len(groups) == -(-rows // group)
    found = [column(file, name, at).statistics for at in groups for name in PRUNED]
    assert all(each.has_min_max and each.null_count == 0 for each in found)
    authors = [column(file, "author", at).statistics for at in groups]
    assert {(each.min, each.max) for each in authors} == {(author or "me",) * 2}


def test_columns_of_one_value_are_not_compressed_and_others_are(tmp_path):
    file = written(tmp_path, events(5_000))
    how = {name: column(file, name).compression for name in file.schema_arrow.names}
    packed = {name for name, each in how.items() if each == "ZSTD"}
    assert packed == {"series", "sequence", "timestamp", "value"}


def test_the_dictionary_of_large_values_stays_small(tmp_path):
    # 24 MB of texts that all differ. A dictionary of all costs their size over again in memory.
    letters = np.random.default_rng(1).integers(97, 123, (6_000, 4_000), np.uint8)
    texts = pa.array([line.tobytes().decode() for line in letters])
    file = written(tmp_path, events(6_000, values=texts))
    value = column(file, "value")
    assert value.data_page_offset - value.dictionary_page_offset < 6_000_000
    assert set(file.read(["value"])["value"].to_pylist()) == set(texts.to_pylist())


def test_a_file_of_one_event_has_no_dictionaries_and_one_of_more_has(tmp_path):
    """A dictionary page of one value is a page more to write and to read."""
    alone, pair = written(tmp_path / "one", events(1)), written(tmp_path / "two", events(2))
    names = alone.schema_arrow.names
    assert not any(column(alone, name).has_dictionary_page for name in names)
    assert {name for name in names if column(pair, name).has_dictionary_page} >= {"author"}


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_row_group_of_large_rows_ends_at_its_bytes(is_dictionary):
    """Readers decode whole row groups. A mean over all rows would leave one series in one group."""
    sizes = np.where(np.arange(3_000) < 100, 10_000, 10)
    values = pa.array(["x" * size for size in sizes] + ["y" * 200_000])
    table = pa.table({"series": [f"s{n // 50:05}" for n in range(3_001)], "value": values})
    if is_dictionary:
        table = table.set_column(0, "series", table["series"].dictionary_encode())
    groups = cut_groups(table, 1_000, 100_000)
    assert pa.concat_tables(groups).equals(table) or is_dictionary
    plain = [group.set_column(0, "series", group["series"].cast(pa.string())) for group in groups]
    assert pa.concat_tables(plain)["series"].to_pylist() == table["series"].to_pylist()
    assert all(
        group.num_rows == 1 or each.nbytes < 130_000
        for group, each in zip(groups, plain, strict=True)
    )
    assert max(group.num_rows for group in groups) > 400
    if is_dictionary:
        named = [group["series"].chunk(0).dictionary.to_pylist() for group in groups]
        assert named == [sorted(set(group["series"].to_pylist())) for group in groups]


def test_row_groups_of_large_rows_stay_small_through_a_compaction(tmp_path):
    """It made one row group of all, so that a question of one event took ten times as long."""
    store = TimeSeries.create(tmp_path, {"text": pa.string()}, "unlimited", auto_compact=False)
    rows = pa.table(
        {
            "series": [f"s{n % 10}" for n in range(300)],
            "timestamp": pa.array(range(300), pa.timestamp("us", "UTC")),
            "text": [f"{n:04}" * 25_000 for n in range(300)],
        }
    )
    for start in range(0, 300, 30):
        store.append_many(rows.slice(start, 30))
    store.compact()
    (path,) = tmp_path.glob("kind=event/*_*.parquet")
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert len(groups) == 4
    assert max(groups) == 75
