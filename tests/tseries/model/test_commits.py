"""The record of CTIs: the store's promise is the least of its writers', and never goes back."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tseries.builders import batch, new_store

from pyspark_tseries import OutOfOrder, TimeSeries, UpdateFailed
from pyspark_tseries.__main__ import main
from pyspark_tseries.model.commits import (
    MAX_HISTORY,
    CtiRecord,
    attach_metadata,
    name_writer,
    read_metadata,
)
from pyspark_tseries.options import STORE_POLICIES
from pyspark_tseries.read.delivery import Position
from pyspark_tseries.store.store import Store

STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 50), st.booleans()), max_size=60
)


def promises(steps):
    """The store's promise after each step by semantics 30, only from the steps."""
    known, promised, after = {}, None, []
    for writer, us, leaves in steps:
        if leaves:
            known.pop(writer, None)
        else:
            given = [each for each in (known.get(writer), us) if each is not None]
            known[writer] = max(given) if given else None
        if known and None not in known.values():
            promised = (
                min(known.values()) if promised is None else max(promised, min(known.values()))
            )
        after.append(promised)
    return after


def fold(steps, record=None):
    record, after = record or CtiRecord(), []
    for commit, (writer, us, leaves) in enumerate(steps):
        record = record.forget(writer, commit) if leaves else record.advance(writer, us, commit)
        after.append(record)
    return after


@given(STEPS)
def test_promise_is_the_least_of_all_writers_and_never_goes_back(steps):
    records = fold(steps)
    assert [record.store_us for record in records] == promises(steps)


@given(STEPS)
def test_promise_of_an_earlier_commit_is_found_in_every_later_record(steps):
    expected = promises(steps)
    for record in fold(steps):
        for commit in range(len(expected)):
            found = record.cti_at(commit)
            assert found in {None, *expected[: commit + 1]}
    if steps:
        last = fold(steps)[-1]
        # Fewer steps than promises in the history, so none was left out.
        assert [last.cti_at(commit) for commit in range(len(steps))] == expected


def test_long_history_stays_short_and_promises_no_more_than_was_promised():
    record = CtiRecord()
    for commit in range(5000):
        record = record.advance("a", 10 * commit, commit)
        assert len(record.history) <= MAX_HISTORY
    found = [record.cti_at(commit) for commit in range(5000)]
    assert all(us is None or us <= 10 * commit for commit, us in enumerate(found))
    assert found == sorted(found, key=lambda us: -1 if us is None else us)
    assert found[4980:] == [10 * commit for commit in range(4980, 5000)]
    assert found[2500] is not None


@given(STEPS)
def test_record_goes_through_a_head_file_and_damage_is_found(steps):
    for record in fold(steps)[-1:]:
        store_metadata = read_metadata(_schema(record))
        assert store_metadata.ctis == record
        schema = _schema(record)
        entries = dict(schema.metadata)
        entries[b"tseries"] = entries[b"tseries"].replace(b'"writers"', b'"wr1ters"')
        with pytest.raises(ValueError, match="checksum is another one"):
            read_metadata(schema.with_metadata(entries))


def _schema(record):
    from pyspark_tseries.model.commits import NO_COMMIT

    return attach_metadata(pa.table({"x": [1]}), replace(NO_COMMIT, commit=3, ctis=record)).schema


def commit(store, *rows, query="q", number=0, cti_us=None, policy="fail"):
    made = batch(*rows, policy=policy, token=(f"tseries:q:{query}", number))
    return store.append(replace(made, cti_us=cti_us))


def test_store_promises_the_least_cti_of_its_queries(tmp_path):
    store = new_store(tmp_path / "s")
    commit(store, ("a", 5), query="x", cti_us=10)
    assert TimeSeries.open(tmp_path / "s").describe()["cti"] == "1970-01-01T00:00:00.000010Z"
    commit(store, ("b", 12), query="y", cti_us=None)
    commit(store, ("a", 20), query="x", number=1, cti_us=30)
    store.refresh()
    assert store.metadata().ctis.store_us == 10
    commit(store, query="y", number=1, cti_us=25)
    store.refresh()
    assert store.metadata().ctis.store_us == 25
    assert store.metadata().ctis.blocking() == ["query y"]
    assert Store.open(str(tmp_path / "s")).metadata().ctis.cti_at(1) == 10


@pytest.mark.parametrize("policy", list(STORE_POLICIES))
def test_original_before_the_promise_is_late_also_in_a_new_series(tmp_path, policy):
    store = new_store(tmp_path / "s")
    commit(store, ("a", 5), cti_us=10)
    rows = ("b", 9), ("b", 10)
    if policy == "fail":
        with pytest.raises(OutOfOrder, match=r"'b'.*before the store's CTI"):
            commit(store, *rows, number=1)
        assert store.metadata().commit == 0
        return
    commit(store, *rows, number=1, policy=policy)
    read = TimeSeries.open(tmp_path / "s").range_query().select_from("b").to_arrow()
    times = read["timestamp"].cast(pa.int64()).to_pylist()
    assert times == ([10] if policy == "drop" else [10, 10])
    assert getattr(store.metadata(), "dropped" if policy == "drop" else "adjusted") == 1


def test_row_without_a_time_is_refused_before_a_promise_that_lies_ahead(tmp_path):
    store = new_store(tmp_path / "s")
    commit(store, ("a", 5), cti_us=253_402_300_799_000_000)
    with pytest.raises(UpdateFailed, match="before the store's CTI"):
        TimeSeries.open(tmp_path / "s").append("a", 1.0)
    TimeSeries.open(tmp_path / "s").edit("a", 0, 7.0)
    assert store.metadata().ctis.without_cti() == []


def test_append_without_a_query_holds_the_promise_until_it_is_forgotten(tmp_path, capsys):
    path = str(tmp_path / "s")
    store, series = new_store(path), TimeSeries.open(path, author="me")
    assert series.cti() is None
    series.append("a", 1.0)
    commit(store, ("a", 2**51), cti_us=2**51)
    assert series.cti() is None
    assert series.describe()["cti_writers"]["batch"] is None
    with pytest.raises(ValueError, match="'nobody' is not known; accepted: 'batch', 'query q'"):
        series.forget_writer("nobody")
    with pytest.raises(ValueError, match=r"\['batch'\] is not known; accepted: 'batch', 'query q'"):
        series.forget_writer(["batch"])
    assert main(["forget-writer", path, "--writer", "batch"]) == 0
    assert series.cti() is not None
    assert main(["forget-writer", path, "--writer", "batch"]) == 1
    assert "'batch' is not known" in capsys.readouterr().err


def test_position_gets_the_cti_that_its_store_had_by_then():
    position = Position("s", 1, False, 3, 5, 0, "limit 1")
    later = position.with_cti(CtiRecord({"a": 9}, ((1, 4), (3, 9), (4, 10))))
    assert later.cti == 9
    assert Position.from_json(later.to_json()) == later
    assert later.with_cti(CtiRecord({"a": 9}, ((1, 4),))) == later
    assert replace(position, initial=True).with_cti(CtiRecord({"a": 9}, ((1, 4),))).cti is None


def test_query_is_named_by_its_id_and_every_other_write_alike():
    assert name_writer(("tseries:q:1-2", 4)) == "query 1-2"
    assert name_writer(("tseries:app:x", 4)) == name_writer(None) == "batch"


def test_rebuilt_head_keeps_the_promise_and_holds_it_until_writers_are_known(tmp_path):
    path = tmp_path / "s"
    store = new_store(path)
    commit(store, ("a", 5), query="x", cti_us=10)
    commit(store, ("b", 12), query="y", cti_us=15)
    store.refresh()
    head = path / "_tseries" / "head" / f"{store.head_id():016x}.arrow"
    head.write_bytes(b"torn")
    assert main(["rebuild", str(path)]) == 0
    facts = TimeSeries.open(path).describe()
    assert facts["cti"] == "1970-01-01T00:00:00.000010Z"
    assert facts["cti_writers"] == {"query x": "1970-01-01T00:00:00.000010Z", "unknown": None}
