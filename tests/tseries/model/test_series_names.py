"""A series may have any name: of every plane, it is found, edited, compacted and delivered."""

import json

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lengths import repetitions
from tseries.builders import VALUE, batch, forget_stores, new_store, stored
from tseries.limits import set_limits
from tseries.subscriber import Client

from pyspark_tseries import TimeSeries
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain import compactor
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import UNLIMITED, Query
from pyspark_tseries.spark.readers import RangeQueryReader
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.log_entries import seal
from pyspark_tseries.store.store import Store

ENDS = [chr(min(0x10FFFF, max(1, (n << 16) + more))) for n in range(18) for more in (-1, 0, 0xBB7)]
LETTERS = st.one_of(st.sampled_from(ENDS), st.characters(exclude_categories=["Cs"]))
LEGAL = st.text(LETTERS, max_size=4)


def reopened(path):
    forget_stores()
    return TimeSeries.open(str(path), author="me", auto_compact=False)


def asked_by_spark(path, series=None):
    store = Store.open(str(path))
    schema = DefaultSource({"path": str(path)}).schema()
    reader = RangeQueryReader(store.snapshot(), Query("allEdits"), series, schema, principal="me")
    rows = [rows for part in reader.partitions() for rows in reader.read(part)]
    found = {}
    for part in rows:
        for name, n in zip(part["series"].to_pylist(), part["sequence"].to_pylist(), strict=True):
            found.setdefault(name, []).append(n)
    return {name: sorted(numbers) for name, numbers in found.items()}


def check(path, expected):
    """Every way to ask gives the sequences `expected` by name, edits included."""
    series = reopened(path)
    for name, numbers in expected.items():
        events = series.range_query().for_edits().select_from(name).events
        assert [event.sequence for event in events] == numbers
        assert asked_by_spark(path, [name]) == {name: numbers}
    assert asked_by_spark(path) == expected
    assert sorted(Client(path, UNLIMITED).drain(2)) == sorted(
        (name, n) for name, numbers in expected.items() for n in numbers
    )


@pytest.mark.outside_ci
@pytest.mark.thorough
@settings(max_examples=25)
@given(st.lists(LEGAL, min_size=1, max_size=repetitions(3, 6), unique=True), st.data())
@example(["\U00020bb7野家"], None)
@example(["a", "\U0001f600", "\U00020bb7", "\U000e0001", "\U0010ffff", "z"], None)
def test_a_series_of_any_name_is_found_edited_compacted_and_delivered(
    tmp_path_factory, names, data
):
    path = tmp_path_factory.mktemp("names") / "s"
    store = Store.create(str(path), [VALUE], UNLIMITED, min_retention_us=0)
    for name in names:  # Each in a file of its own,
        store.append(batch((name, 1)))
    store.append(batch(*((name, 2) for name in names)))  # and among others.
    few = names if data is None else data.draw(st.lists(st.sampled_from(names), unique=True))
    for name in few:
        reopened(path).edit(name, 0, 2.0)
    expected = {name: [0, 1, 2] if name in few else [0, 1] for name in names}
    check(path, expected)
    assert verify(str(path)) == []
    DeltaTable(path).create_checkpoint()
    for entry in (path / "_delta_log").glob("*.json"):
        if int(entry.stem) < DeltaTable(path).version():
            entry.unlink()
    check(path, expected)
    with pytest.MonkeyPatch.context() as patch:
        set_limits(patch, range_bytes=150)
        assert compact(str(path)).removed_events == 0
    check(path, expected)
    assert verify(str(path)) == []
    logged = pa.table(DeltaTable(path).get_add_actions(flatten=True))
    assert {*logged["min.series"].to_pylist(), *logged["max.series"].to_pylist()} <= set(names)


# -- logs with wrong bounds ----------------------------------------------------------------------

NAMES = ("a", "野家", "\U0001f600", "\U00020bb7野家", "\U000e0001", "\U0010ffff")
"""Of planes 0, 0, 1, 2, 14 and 16; in this order."""

EXPECTED = {name: [0, 1, 2] if name in NAMES[1:-1] else [0, 1] for name in NAMES}
EXPECTED["a"] = [0, 1, 2]


@pytest.fixture
def old(tmp_path):
    """A store with names as escaped JSON in its log; deltalake reads other names."""
    store = new_store(tmp_path / "s")
    for n, name in enumerate(NAMES):
        store.append(batch((name, n), (name, n)))
    store.append(batch(*((name, 10) for name in NAMES[1:-1])))
    store.append(batch(edits=[("a", 0)]))
    for path in (tmp_path / "s/_delta_log").glob("*.json"):
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        for line in lines:
            if "add" in line:
                line["add"]["stats"] = json.dumps(json.loads(line["add"]["stats"]))
        lines = [json.dumps(line, separators=(",", ":")).encode() for line in lines]
        path.write_bytes(seal(b"".join(line + b"\n" for line in lines)))
    forget_stores()
    return tmp_path / "s"


def by_deltalake(path):
    """How many events of each series a reader finds that goes by the log's bounds."""
    table = DeltaTable(path).to_pyarrow_dataset()
    return [table.count_rows(filter=ds.field("series") == name) for name in NAMES]


def test_verify_finds_bounds_that_are_read_wrongly(old):
    said = list(map(str, verify(str(old))))
    assert len(said) == 4
    assert all("the log is read as" in line and "repair" in line for line in said)
    assert any("'\U00020bb7野家' to '\U00020bb7野家'" in line for line in said)


def test_wrong_bounds_are_healed(old):
    assert by_deltalake(old) == [3, 3, 3, 1, 0, 0]
    before = stored(old, "series", "sequence", "timestamp", "value", "commit")
    repair(str(old))
    assert verify(str(old)) == []
    assert by_deltalake(old) == [len(EXPECTED[name]) for name in NAMES]
    assert stored(old, "series", "sequence", "timestamp", "value", "commit") == before
    check(old, EXPECTED)
    reopened(old).append(NAMES[3], 1.0)
    assert verify(str(old)) == []


def test_a_healed_file_keeps_its_commits_and_its_content(old):
    before = {file.last_commit: file for file in Store.open(str(old)).snapshot().files}
    untouched = [before[commit] for commit in (0, 1, 2, 7)]
    assert len(repair(str(old), dry_run=True).mended) == 4
    assert Store.open(str(old)).log.version() == 8
    assert len(repair(str(old)).mended) == 4
    for file in Store.open(str(old)).snapshot().files:
        was = before[file.last_commit]
        assert (old / file.path).read_bytes() == (old / was.path).read_bytes()
        assert (file.path == was.path) == (was in untouched)
    assert repair(str(old)).mended == ()


def test_a_store_that_is_compacted_meanwhile_is_not_healed_twice(old, monkeypatch):
    from pyspark_tseries.maintain import rebuild

    def late(*args):
        monkeypatch.undo()
        compact(str(old))
        return rebuild.replace_files(*args)

    monkeypatch.setattr(rebuild, "replace_files", late)
    with pytest.raises(Exception, match="a compaction was first"):
        repair(str(old))
    check(old, EXPECTED)
    assert verify(str(old)) == []


def test_a_compaction_that_would_lose_rows_changes_nothing(old, monkeypatch):
    before = Store.open(str(old)).snapshot().files
    set_limits(monkeypatch, range_bytes=150, small_file_bytes=0)
    # As if the bounds of a file were trusted, and wrong.
    whole = compactor.read_pieces
    monkeypatch.setattr(compactor, "read_pieces", lambda *given: list(whole(*given))[1:])
    with pytest.raises(UnusableStore, match=r"would lose events.*nothing was changed"):
        compact(str(old))
    monkeypatch.undo()
    assert Store.open(str(old)).snapshot().files == before
    live = {file.path for file in before}
    assert {str(path.relative_to(old)) for path in old.rglob("*.parquet")} == live
