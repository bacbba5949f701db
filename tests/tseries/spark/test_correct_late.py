"""Late rows correct windows in a store: like one computation of all rows, in any split, once."""

import json
import math
import operator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_timestream.core.policies import POLICIES
from pyspark_tseries import (
    IncompatibleValue,
    PermissionDenied,
    ReplayDiffers,
    TimeSeries,
    UpdateFailed,
    correct_late,
    withdraw_corrections,
)
from pyspark_tseries.maintain import corrections
from pyspark_tseries.maintain.backup import backup
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.columns import INSTANT
from pyspark_tseries.model.commits import name_writer
from pyspark_tseries.spark.correct_late import LATE_COUNT, WindowRules, _Corrector, advance_windows
from pyspark_tseries.spark.query_checks import (
    note_writer,
    read_streams,
    refuse_other_streams,
    refuse_without_ctis,
)
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.rows import staged_schema

HOUR_US = 3_600_000_000
KEYS = ("series", "hour")
MERGES = {"rides": "sum", "shortest": "min", "longest": "max", "product": lambda a, b: a * b}
VALUES = {name: pa.int64() for name in MERGES}
START = datetime(1970, 1, 1, tzinfo=UTC)
ROW = st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 9), st.booleans())
"""Series, hour, value, and whether the row is late."""


def aggregate(rows):
    """The results of (series, hour, value), from the definition of each."""
    found = {}
    for series, hour, value in rows:
        found.setdefault((series, hour), []).append(value)
    result = {}
    for key, values in found.items():
        product = 1
        for value in values:
            product *= value
        result[key] = (len(values), min(values), max(values), product)
    return result


def windows(rows):
    """A batch of late rows as Spark aggregates it."""
    made = [
        {
            "series": s,
            "hour": hour * HOUR_US,
            **dict(zip(MERGES, results, strict=True)),
            LATE_COUNT: results[0],
        }
        for (s, hour), results in aggregate(rows).items()
    ]
    fields = [
        ("series", pa.string()),
        ("hour", pa.int64()),
        *VALUES.items(),
        (LATE_COUNT, pa.int64()),
    ]
    table = pa.Table.from_pylist(made, pa.schema(fields))
    return table.set_column(1, "hour", table["hour"].cast(INSTANT))


class Main:
    """The query that writes the windows of rows in time, one hour of the CTI a batch."""

    def __init__(self, path, retained="unlimited"):
        TimeSeries.create(
            path, {"hour": INSTANT, **VALUES, "reason": pa.string()}, retained_range=retained
        )
        self.path, self.batch = str(path), 0

    def write(self, in_time, hour, final=False):
        """The windows of `hour`, with the CTI that follows."""
        store = Store.open(self.path)
        rows = [
            {
                "series": s,
                "timestamp": at * HOUR_US,
                "hour": at * HOUR_US,
                **dict(zip(MERGES, r, strict=True)),
            }
            for (s, at), r in aggregate(in_time).items()
            if at == hour
        ]
        schema = staged_schema(store.values)
        plain = pa.schema(
            [pa.field(f.name, pa.int64() if f.type == INSTANT else f.type) for f in schema]
        )
        table = pa.Table.from_pylist(rows, plain).cast(schema).combine_chunks()
        cti_us = (hour + 1) * HOUR_US
        store.append(Batch(table, "fail", "main", ("tseries:q:main", self.batch), cti_us=cti_us))
        self.batch += 1


@pytest.mark.parametrize("hour", [1, 6], ids=["corrected", "waiting"])
def test_batch_of_late_rows_that_comes_again_with_other_rows_is_refused(tmp_path, hour):
    main = Main(tmp_path / "s")
    for each in range(3):
        main.write([("a", each, 1)], each)
    rows = [("a", hour, 5)]
    for _ in range(2):
        plan(main.path).correct(windows(rows), "q", 0)
    with pytest.raises(ReplayDiffers, match="batch 0 of query q comes again with other rows"):
        plan(main.path).correct(windows([("a", hour, 7)]), "q", 0)
    for number in (1, 2, 3):
        plan(main.path).correct(windows([]), "q", number)
    with pytest.raises(ReplayDiffers, match=r"batch 1 of query q is .* has its batch 3"):
        plan(main.path).correct(windows(rows), "q", 1)


def plan(path, max_age_us=None, merges=None):
    rules = WindowRules(KEYS, merges or MERGES, 0, "late", "came late", max_age_us)
    return _Corrector(parse_location(path), rules)


def in_force(path):
    table = Store.open(str(path))
    rows = [
        row
        for name in "ab"
        for row in TimeSeries.open(table.root)
        .range_query()
        .select_from(name)
        .to_arrow()
        .to_pylist()
    ]
    return {
        (row["series"], round(row["hour"].timestamp()) // 3600): tuple(row[name] for name in MERGES)
        for row in rows
        if row["hour"] is not None
    }


@settings(max_examples=15, deadline=None)
@given(st.lists(ROW, max_size=25), st.lists(st.integers(0, 7), max_size=6), st.data())
def test_corrected_store_equals_all_rows_in_any_split_with_every_batch_twice(
    tmp_path_factory, rows, moments, data
):
    """Late rows come in batches at any moments between the writing query's."""
    path = tmp_path_factory.mktemp("s") / "s"
    main, late = Main(path), [row[:3] for row in rows if row[3]]
    in_time = [row[:3] for row in rows if not row[3]]
    cuts = sorted(data.draw(st.integers(0, len(late))) for _ in moments)
    batches = [late[a:b] for a, b in zip([0, *cuts], [*cuts, len(late)], strict=True)]
    number = 0
    for hour in range(8):
        for _ in range(moments.count(hour)):
            for _ in range(2):  # As after a kill before Spark's note of the batch.
                plan(path).correct(windows(batches[number]), "q", number)
            number += 1
        main.write(in_time, hour)
    for last in batches[number:]:
        plan(path).correct(windows(last), "q", number)
        number += 1
    assert in_force(path) == aggregate([*in_time, *late])
    assert verify(str(path)) == []
    assert set(Store.open(str(path)).metadata().ctis.writers) == {
        name_writer(("tseries:q:main", 0))
    }


def test_window_that_may_still_be_written_waits_in_a_file_of_the_store(tmp_path):
    main = Main(tmp_path / "s")
    main.write([("a", 0, 5)], 0)
    late = [("a", 0, 2), ("a", 1, 3)]
    plan(tmp_path / "s").correct(windows(late), "q", 0)
    assert in_force(tmp_path / "s") == aggregate([("a", 0, 5), ("a", 0, 2)])
    main.write([("a", 1, 7)], 1)
    assert in_force(tmp_path / "s")["a", 1] == (1, 7, 7, 7)
    plan(tmp_path / "s").correct(windows([]), "q", 1)
    assert in_force(tmp_path / "s")["a", 1] == (2, 3, 7, 21)


def test_original_and_correction_stay_with_author_and_reason(tmp_path):
    main = Main(tmp_path / "s")
    main.write([("a", 0, 5)], 0)
    plan(tmp_path / "s").correct(windows([("a", 0, 2), ("b", 0, 2)]), "q", 0)
    series = TimeSeries.open(tmp_path / "s")
    events = series.range_query().for_edits().select_from("a").to_arrow().to_pylist()
    assert [(e["rides"], e["author"], e["reason"]) for e in events] == [
        (1, "main", None),
        (2, "late", "came late"),
    ]
    assert events[1]["original_sequence"] == 0
    (new,) = series.range_query().select_from("b").to_arrow().to_pylist()
    assert (new["timestamp"], new["reason"]) == (datetime(1970, 1, 1, tzinfo=UTC), "came late")


@pytest.mark.parametrize("committed", [False, True])
def test_batch_that_a_kill_repeats_decides_anew_unless_it_is_committed(
    tmp_path, monkeypatch, committed
):
    path, append = tmp_path / "s", Store.append
    late = windows([("a", 0, 2), ("a", 1, 3)])
    main = Main(path)
    main.write([("a", 0, 5)], 0)

    def killed(*args, **named):
        if committed:
            append(*args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            plan(path).correct(late, "q", 0)
    main.write([("a", 1, 7)], 1)
    plan(path).correct(late, "q", 0)
    both = {("a", 0): (2, 2, 5, 10), ("a", 1): (2, 3, 7, 21)}
    assert in_force(path) == ({**both, ("a", 1): (1, 7, 7, 7)} if committed else both)
    plan(path).correct(windows([]), "q", 1)
    assert in_force(path) == both


def test_two_drivers_that_correct_by_one_batch_at_once_decide_by_one_cti(tmp_path, monkeypatch):
    path, late = tmp_path / "s", [("a", 0, 2), ("a", 1, 3)]
    main, write = Main(path), corrections.LateFiles.write
    main.write([("a", 0, 5)], 0)

    def write_after_another(*args, **named):
        monkeypatch.setattr(corrections.LateFiles, "write", write)
        main.write([("a", 1, 7)], 1)
        plan(path).correct(windows(late), "q", 0)
        write(*args, **named)

    monkeypatch.setattr(corrections.LateFiles, "write", write_after_another)
    plan(path).correct(windows(late), "q", 0)
    both = {("a", 0): (2, 2, 5, 10), ("a", 1): (2, 3, 7, 21)}
    assert in_force(path) == both
    plan(path).correct(windows([]), "q", 1)
    assert in_force(path) == both


def test_windows_that_get_too_old_before_their_commit_are_left_out(tmp_path, monkeypatch, caplog):
    path, append = tmp_path / "s", Store.append
    main = Main(path)
    main.write([("a", 0, 5)], 0)

    def append_after_others(*args, **named):
        monkeypatch.setattr(Store, "append", append)
        main.write([("a", 9, 7)], 9)
        return append(*args, **named)

    monkeypatch.setattr(Store, "append", append_after_others)
    plan(path, HOUR_US).correct(windows([("a", 0, 2)]), "q", 0)
    assert in_force(path)["a", 0] == (1, 5, 5, 5)
    assert "1 late rows of 1 windows are left out" in caplog.text


def test_query_goes_on_with_a_backup_of_its_store_and_not_before_it(tmp_path):
    main, copy = Main(tmp_path / "s"), tmp_path / "copy"
    main.write([("a", 0, 5)], 0)
    batches = [windows([("a", 0, 2), ("a", 1, 3)]), windows([("a", 1, 4)]), windows([])]
    for number in (0, 1):
        plan(main.path).correct(batches[number], "q", number)
    backup(main.path, str(copy))
    with pytest.raises(ReplayDiffers, match="the checkpoint is older than the store"):
        plan(copy).correct(batches[0], "q", 0)
    with pytest.raises(UpdateFailed, match="since batch 2 are gone"):
        plan(copy).correct(windows([]), "q", 3)
    main.path = str(copy)
    main.write([("a", 1, 7)], 1)
    for number in (1, 2):
        plan(copy).correct(batches[number], "q", number)
    assert in_force(copy) == {("a", 0): (2, 2, 5, 10), ("a", 1): (3, 3, 7, 84)}


def test_correction_counts_an_edit_that_was_made_since_it_began(tmp_path, monkeypatch):
    path = tmp_path / "s"
    Main(path).write([("a", 0, 5)], 0)
    append = Store.append

    def interrupted(self, batch, *args, **named):
        monkeypatch.setattr(Store, "append", append)
        edit = {
            "rides": 100,
            "shortest": 1,
            "longest": 9,
            "product": 1,
            "hour": datetime(1970, 1, 1, tzinfo=UTC),
        }
        TimeSeries.open(path).edit("a", 0, edit)
        return append(self, batch, *args, **named)

    monkeypatch.setattr(Store, "append", interrupted)
    plan(path).correct(windows([("a", 0, 2)]), "q", 0)
    assert in_force(path)["a", 0] == (101, 1, 9, 2)


def test_window_older_than_max_age_is_left_out_counted_and_told(tmp_path, caplog):
    main = Main(tmp_path / "s")
    for hour in range(4):
        main.write([("a", hour, 5)], hour)
    main.write([], 2_000_000)  # A final CTI, say: it makes no window older.
    plan(tmp_path / "s", 2 * HOUR_US).correct(
        windows([("a", 0, 2), ("a", 0, 3), ("a", 1, 2)]), "q", 0
    )
    assert [in_force(tmp_path / "s")["a", hour][0] for hour in range(4)] == [1, 2, 1, 1]
    (told,) = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
    assert told.startswith("2 late rows of 1 windows")
    assert "'a' at 1970-01-01T00:00:00Z, which is further before" in told


OLD_US = -70_000_000_000_000_000  # In the year -249, which no datetime has.


def test_window_before_the_year_1_that_is_too_old_is_told(tmp_path, caplog):
    main = Main(tmp_path / "s")
    main.write([("a", 0, 5)], 0)
    plan(tmp_path / "s", HOUR_US).correct(windows([("a", OLD_US // HOUR_US, 2)]), "q", 0)
    assert "1 late rows of 1 windows are left out" in caplog.text


def test_a_time_that_python_lacks_is_withdrawn_and_a_function_cannot_merge_it(tmp_path):
    path, keys = tmp_path / "s", ("series", "hour")
    fields = {"hour": INSTANT, "at": INSTANT, "inside": pa.struct([("at", INSTANT)])}
    TimeSeries.create(path, {**fields, "reason": pa.string()}, "unlimited")
    store = Store.open(str(path))
    old = pa.array([OLD_US, OLD_US + 1]).cast(INSTANT)
    schema = staged_schema(store.values)
    hours = [{"series": "a", "timestamp": us, "hour": us} for us in (0, HOUR_US)]
    rows = pa.Table.from_pylist(hours, schema)
    inside = pa.StructArray.from_arrays([old], fields=list(fields["inside"]))
    for name, column in (("at", old), ("inside", inside)):
        rows = rows.set_column(schema.names.index(name), schema.field(name), column)
    rows = rows.combine_chunks()
    store.append(Batch(rows, "fail", "main", ("tseries:q:main", 0), cti_us=3 * HOUR_US))
    late = pa.table(
        {"series": ["a"], "hour": pa.array([START], INSTANT), "at": old[1:], LATE_COUNT: [1]}
    )

    def correct(rule):
        rules = WindowRules(keys, {"at": rule}, 0, "me", "late")
        _Corrector(parse_location(str(path)), rules).correct(late, "q", 0)

    with pytest.raises(IncompatibleValue, match=r"column 'at' .* a function merges it; accepted"):
        correct(lambda a, b: b)
    correct("max")
    assert withdraw_corrections(str(path), start="hour", author="me") == 1
    found = TimeSeries.open(path).range_query().select_from().table
    assert found["at"].cast(pa.int64()).to_pylist() == [OLD_US, OLD_US + 1]


def test_window_out_of_the_retained_range_is_told_and_not_written_again(tmp_path, caplog):
    main = Main(tmp_path / "s", "last 1H")
    for hour in range(4):
        main.write([("a", hour, 5)], hour)
    plan(tmp_path / "s").correct(windows([("a", 1, 2), ("a", 3, 2)]), "q", 0)
    assert in_force(tmp_path / "s") == {("a", 2): (1, 5, 5, 5), ("a", 3): (2, 2, 5, 10)}
    assert TimeSeries.open(tmp_path / "s").describe()["events"] == 5
    assert "retained range" in caplog.text


def test_hidden_window_is_known_though_a_correction_of_an_older_one_is_visible(tmp_path, caplog):
    main, path = Main(tmp_path / "s", "last 2H"), tmp_path / "s"
    for hour in (2, 3, 4):
        main.write([("a", hour, 5)], hour)
    plan(path).correct(windows([("a", 1, 2)]), "q", 0)
    main.write([("a", 6, 5)], 6)
    assert set(in_force(path)) == {("a", hour) for hour in (1, 4, 6)}
    plan(path).correct(windows([("a", 3, 2), ("a", 5, 2)]), "q", 1)
    assert set(in_force(path)) == {("a", hour) for hour in (1, 4, 5, 6)}
    assert "1 late rows of 1 windows are left out" in caplog.text


def test_store_with_a_limit_is_refused_also_once_it_was_set_later(tmp_path):
    main = Main(tmp_path / "s", "limit 10")
    some = {"series": "station", "window": "1 hour", "start": "hour"}
    with pytest.raises(UpdateFailed, match="'limit 10', which counts edits"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, "sum")}, **some)
    for hour in range(3):
        main.write([("a", hour, 5)], hour)
    with pytest.raises(UpdateFailed, match="'limit 10', which counts edits"):
        plan(tmp_path / "s").correct(windows([("a", 0, 2)]), "q", 0)
    assert TimeSeries.open(tmp_path / "s").describe()["events"] == 3


def test_windows_that_a_former_limit_hides_are_told_and_not_written_again(tmp_path, caplog):
    main, path = Main(tmp_path / "s", "limit 1"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    main.write([("a", 1, 5), ("b", 1, 5)], 1)
    TimeSeries.open(path).edit("b", 0, {"rides": 7, "hour": datetime(1970, 1, 1, 1, tzinfo=UTC)})
    TimeSeries.open(path).set_retained_range("unlimited")
    assert set(in_force(path)) == {("a", 1)}
    plan(path).correct(windows([("a", 0, 2), ("b", 0, 2), ("b", 1, 2)]), "q", 0)
    assert TimeSeries.open(path).describe()["events"] == 4
    assert "3 late rows of 3 windows are left out" in caplog.text


@pytest.mark.parametrize("edited", [False, True])
def test_window_that_was_erased_is_told_and_not_written_again(tmp_path, caplog, edited):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    for hour in range(3):
        main.write([("a", hour, 5), ("b", hour, 5)], hour)
    if edited:
        plan(path).correct(windows([("a", 1, 2)]), "q", 0)
    TimeSeries.open(path).erase("a", [3 if edited else 1], "gdpr")
    late = windows([("a", 1, 2), ("a", 2, 2), ("b", 1, 2)])
    plan(path).correct(late, "q", 1 if edited else 0)
    both = (2, 2, 5, 10)
    kept = {("a", 0): (1, 5, 5, 5), ("b", 0): (1, 5, 5, 5), ("b", 2): (1, 5, 5, 5)}
    assert in_force(path) == {**kept, ("a", 2): both, ("b", 1): both}
    assert "1 late rows of 1 windows are left out" in caplog.text
    assert "'a' at 1970-01-01T01:00:00Z, which was erased" in caplog.text


def test_erased_window_of_late_rows_alone_is_not_written_again_but_one_after_it(tmp_path, caplog):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    for hour in range(3):
        main.write([("b", hour, 5)] if hour else [], hour)
    main.write([("a", 3, 5)], 3)
    plan(path).correct(windows([("a", 1, 2)]), "q", 0)
    TimeSeries.open(path).erase("a", [1], "gdpr")
    main.write([], 5)
    plan(path).correct(windows([("a", 1, 4), ("a", 4, 2)]), "q", 1)
    found = {hour: values for (name, hour), values in in_force(path).items() if name == "a"}
    assert found[3] == (1, 5, 5, 5)
    assert found[4] == (1, 2, 2, 2)
    assert 1 not in found
    assert "1 late rows of 1 windows are left out" in caplog.text


def test_restart_may_name_and_order_columns_otherwise_while_windows_wait(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 3, 2)]), "q", 0)
    main.write([("a", 3, 5)], 3)
    order = dict(reversed(MERGES.items()))
    late = windows([("a", 3, 4)]).select([*KEYS, *order, LATE_COUNT])
    rules = replace(plan(path, merges=order).rules, keys=("station", "hour"))
    late = late.rename_columns(["station", *late.column_names[1:]])
    _Corrector(parse_location(path), rules).correct(late, "q", 1)
    assert in_force(path)["a", 3] == (3, 2, 5, 40)


@pytest.mark.parametrize(
    ("merges", "window_us", "said"),
    [
        ({"rides": "sum"}, HOUR_US, r"and this query 'rides' \(sum\) of 1 hour; accepted"),
        ({**MERGES, "longest": "min"}, HOUR_US, r"'longest' \(max\).*'longest' \(min\)"),
        (MERGES, HOUR_US // 2, "of 1 hour, and this query .* of 30 minutes"),
    ],
    ids=["aggregates", "rule", "length"],
)
def test_other_aggregates_are_refused_while_windows_wait_and_taken_once_none_waits(
    tmp_path, merges, window_us, said
):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)

    def correct(rows, number, merges=MERGES, window_us=HOUR_US):
        rules = replace(plan(path, merges=merges).rules, window_us=window_us)
        late = windows(rows).select([*KEYS, *merges, LATE_COUNT])
        _Corrector(parse_location(path), rules).correct(late, "q", number)

    correct([("a", 3, 2)], 0)
    main.write([("a", 3, 5)], 3)
    with pytest.raises(UpdateFailed, match=said):
        correct([("a", 3, 4)], 1, merges, window_us)
    correct([("a", 3, 4)], 1)
    assert in_force(path)["a", 3] == (3, 2, 5, 40)
    correct([("a", 0, 4)], 2, merges, window_us)
    assert in_force(path)["a", 0][0] == 2


def test_edit_leaves_columns_that_are_no_aggregates_as_they_are(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5), ("b", 0, 5)], 0)
    for name, rides in (("a", 10), ("b", 20)):
        values = {"rides": rides, "longest": 30 + rides, "hour": datetime(1970, 1, 1, tzinfo=UTC)}
        TimeSeries.open(path).edit(name, 0, values)
    some = plan(path, merges={"rides": "sum"})
    late = windows([("a", 0, 2), ("b", 0, 2), ("b", -1, 2)])
    some.correct(late.select(["series", "hour", "rides", LATE_COUNT]), "q", 0)
    assert in_force(path) == {
        ("a", 0): (11, None, 40, None),
        ("b", 0): (21, None, 50, None),
        ("b", -1): (1, None, None, None),
    }


def test_results_and_keys_may_have_any_name_and_type(tmp_path):
    """`place` made two columns of one name, and Arrow joins no lists: such queries failed."""
    keys = ("row_sum", "us")
    merges = {"row": "sum", "original": "max", "late_rows": lambda a, b: a, "is_own": operator.add}
    types = {**dict.fromkeys(merges, pa.int64()), "is_own": pa.list_(pa.int64())}
    path = tmp_path / "s"
    TimeSeries.create(path, {"us": INSTANT, **types, "reason": pa.string()}, "unlimited")
    store = Store.open(str(path))
    row = {"series": "a", "timestamp": START, "us": START, "row": 5, "original": 5, "late_rows": 5}
    schema = staged_schema(store.values)
    table = pa.Table.from_pylist([{**row, "is_own": [5]}], schema).combine_chunks()
    store.append(Batch(table, "fail", "main", ("tseries:q:main", 0), cti_us=HOUR_US))
    some = _Corrector(parse_location(str(path)), WindowRules(keys, merges, 0, "me", "late"))
    at = pa.array([START, START], INSTANT)
    columns = {"row_sum": ["a", "b"], "us": at, "row": [1, 2], "original": [7, 8]}
    columns |= {"late_rows": [1, 2], "is_own": [[6], [7]], LATE_COUNT: [1, 1]}
    some.correct(pa.table(columns), "q", 0)

    def rows():
        found = TimeSeries.open(path).range_query().select_from().to_arrow().to_pylist()
        return [[row[name] for name in ("series", *merges)] for row in found]

    assert rows() == [["a", 6, 7, 5, [5, 6]], ["b", 2, 8, 2, [7]]]
    assert withdraw_corrections(str(path), start="us", author="me") == 2
    assert rows() == [["a", 5, 5, 5, [5]], ["b", None, None, None, None]]


def test_new_checkpoint_is_refused_where_another_query_has_corrected(tmp_path):
    path = tmp_path / "s"
    Main(path).write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 0, 2)]), "q", 0)
    for _ in range(2):
        with pytest.raises(UpdateFailed, match="query q has already corrected"):
            plan(path).correct(windows([("a", 0, 2)]), "new", 0)
    assert in_force(path)["a", 0] == (2, 2, 5, 10)
    plan(path).correct(windows([("a", 0, 3)]), "q", 1)
    other = plan(path)
    other.rules = replace(other.rules, beside_others=True)
    other.correct(windows([("a", 0, 2)]), "new", 0)
    plan(path).correct(windows([("a", 0, 1)]), "new", 1)
    assert in_force(path)["a", 0][0] == 5


def test_of_the_first_corrections_of_two_queries_at_once_one_is_refused(tmp_path, monkeypatch):
    path, append = tmp_path / "s", Store.append
    Main(path).write([("a", 0, 5)], 0)

    def append_after_another(self, batch, *args, **named):
        monkeypatch.setattr(Store, "append", append)
        plan(path).correct(windows([("a", 0, 2)]), "q", 0)
        return append(self, batch, *args, **named)

    monkeypatch.setattr(Store, "append", append_after_another)
    with pytest.raises(UpdateFailed, match="query q has already corrected"):
        plan(path).correct(windows([("a", 0, 2)]), "new", 0)
    assert in_force(path)["a", 0] == (2, 2, 5, 10)


def test_query_that_has_corrected_nothing_does_not_refuse_a_new_one(tmp_path):
    path = tmp_path / "s"
    Main(path).write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 3, 2)]), "q", 0)
    plan(path).correct(windows([("a", 0, 2)]), "new", 0)
    assert in_force(path)["a", 0][0] == 2


def test_column_of_reasons_that_others_write_is_not_overwritten(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    values = {"hour": datetime(1970, 1, 1, 1, tzinfo=UTC), "rides": 1, "reason": "rain"}
    TimeSeries.open(path).append("a", values, datetime(1970, 1, 1, 1, tzinfo=UTC))
    TimeSeries.open(path).forget_writer("batch")
    main.write([("b", 3, 5)], 3)
    with pytest.raises(UpdateFailed, match="'reason' is not of corrections: in series 'a'"):
        plan(path).correct(windows([("a", 1, 2), ("b", 3, 2)]), "q", 0)
    assert TimeSeries.open(path).describe()["events"] == 2


def test_column_of_reasons_that_is_no_text_is_refused_before_the_query(tmp_path):
    TimeSeries.create(tmp_path / "s", {"hour": INSTANT, "rides": pa.int64(), "reason": pa.int64()})
    some = {"series": "station", "window": "1 hour", "start": "hour"}
    with pytest.raises(IncompatibleValue, match="'reason' of type int64"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, "sum")}, **some)


def test_author_without_permission_adds_no_column(tmp_path):
    values = {"hour": INSTANT, "rides": pa.int64()}
    policy = {"main": ["own"], "correct_late": ["read"]}
    TimeSeries.create(tmp_path / "s", values, "unlimited", author="main", policy=policy)
    some = {"series": "station", "window": "1 hour", "start": "hour"}
    with pytest.raises(PermissionDenied, match="'correct_late' may not correct windows"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, "sum")}, **some)
    assert "reason" not in [each.name for each in Store.open(str(tmp_path / "s")).values]


def test_missing_file_of_waiting_windows_stops_the_query(tmp_path):
    Main(tmp_path / "s").write([("a", 0, 5)], 0)
    plan(tmp_path / "s").correct(windows([("a", 3, 2)]), "q", 0)
    (path,) = (tmp_path / "s" / "_tseries" / "late" / "q").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UpdateFailed, match="since batch 0 are gone"):
        plan(tmp_path / "s").correct(windows([]), "q", 1)


def test_files_of_waiting_windows_do_not_pile_up(tmp_path):
    Main(tmp_path / "s").write([("a", 0, 5)], 0)
    for number in range(6):
        plan(tmp_path / "s").correct(windows([("a", 3, 2)]), "q", number)
    left = (tmp_path / "s" / "_tseries" / "late" / "q").iterdir()
    assert sorted(path.name for path in left) == ["4.arrow", "5.arrow"]


def test_late_row_without_a_series_is_refused(tmp_path):
    Main(tmp_path / "s").write([("a", 0, 5)], 0)
    with pytest.raises(UpdateFailed, match="'series' is null in late rows"):
        plan(tmp_path / "s").correct(windows([(None, 0, 2)]), "q", 0)


@pytest.mark.parametrize("data_type", [pa.int64(), pa.binary()])
def test_series_that_is_no_text_is_refused_with_the_cast(tmp_path, data_type):
    Main(tmp_path / "s").write([("a", 0, 5)], 0)
    numbers = windows([("1", 0, 2)]).set_column(0, "series", pa.array(["1"]).cast(data_type))
    with pytest.raises(IncompatibleValue, match=r"'series' of .*cast\('string'\)"):
        plan(tmp_path / "s").correct(numbers, "q", 0)


def test_series_that_is_no_utf8_is_refused_by_its_column(tmp_path):
    Main(tmp_path / "s").write([("a", 0, 5)], 0)
    name = pa.array([b"\xff"]).view(pa.string())
    late = windows([("a", 0, 2)]).set_column(0, "series", name)
    with pytest.raises(IncompatibleValue, match=r"column 'series' holds .* which is not UTF-8"):
        plan(tmp_path / "s").correct(late, "q", 0)


def results_of(path, stored, late, data_type, rule):
    """The values of a window after a rule has merged its stored and late results."""
    TimeSeries.create(
        path, {"hour": INSTANT, "result": data_type, "reason": pa.string()}, "unlimited"
    )
    store = Store.open(str(path))
    row = {"series": "a", "timestamp": START, "hour": START, "result": stored}
    table = pa.Table.from_pylist([row], staged_schema(store.values)).combine_chunks()
    store.append(Batch(table, "fail", "main", ("tseries:q:main", 0), cti_us=HOUR_US))
    batch = windows([("a", 0, 1)]).select([*KEYS, LATE_COUNT])
    batch = batch.append_column("result", pa.array([late], data_type))
    plan(path, merges={"result": rule}).correct(batch, "q", 0)
    return TimeSeries.open(path).range_query().select_from("a").to_arrow()["result"].to_pylist()


@pytest.mark.parametrize(
    ("data_type", "stored", "late", "rule"),
    [
        (pa.int64(), 2**63 - 1, 1, "sum"),
        (pa.int8(), 100, 100, "sum"),
        (pa.decimal128(3, 1), Decimal("99.9"), Decimal("0.1"), "sum"),
        (pa.int64(), 2**62, 2, operator.mul),
        (pa.int64(), 1, 2, lambda a, b: f"{a}{b}x"),
    ],
)
def test_sum_beyond_its_type_is_refused_by_column_and_nothing_is_stored(
    tmp_path, data_type, stored, late, rule
):
    with pytest.raises(IncompatibleValue, match="a merged result of column 'result' does not fit"):
        results_of(tmp_path / "s", stored, late, data_type, rule)
    assert TimeSeries.open(tmp_path / "s").describe()["events"] == 1


def test_refused_batch_is_taken_once_its_aggregates_are_cast(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    late = windows([("a", 0, 2), ("a", 3, 2)])
    halves = late.set_column(2, "rides", pa.array([1.5, 1.5]))
    with pytest.raises(IncompatibleValue, match="cast the aggregates to the types of the store"):
        plan(path).correct(halves, "q", 0)
    plan(path).correct(late, "q", 0)
    main.write([("a", 3, 5)], 3)
    plan(path).correct(windows([]), "q", 1)
    assert in_force(path) == {("a", 0): (2, 2, 5, 10), ("a", 3): (2, 2, 5, 10)}


def test_sum_that_was_refused_is_taken_by_a_wider_column(tmp_path):
    with pytest.raises(IncompatibleValue, match="widen_columns"):
        results_of(tmp_path / "s", 2**63 - 1, 1, pa.int64(), "sum")
    wide = pa.decimal128(20)
    TimeSeries.open(tmp_path / "s").widen_columns({"result": wide})
    batch = windows([("a", 0, 1)]).select([*KEYS, LATE_COUNT])
    batch = batch.append_column("result", pa.array([1]).cast(wide))
    plan(tmp_path / "s", merges={"result": "sum"}).correct(batch, "q", 0)
    found = TimeSeries.open(tmp_path / "s").range_query().select_from("a").to_arrow()
    assert found["result"].to_pylist() == [2**63]


def test_rule_that_its_type_does_not_have_is_refused_with_the_types(tmp_path):
    with pytest.raises(IncompatibleValue, match=r"'result' \(string\) by 'sum'.*another rule"):
        results_of(tmp_path / "s", "x", "y", pa.string(), "sum")


@pytest.mark.parametrize("nan_is_late", [False, True])
def test_maximum_with_a_nan_is_sparks(tmp_path, nan_is_late):
    stored, late = (5.0, math.nan) if nan_is_late else (math.nan, 5.0)
    (high,) = results_of(tmp_path / "high", stored, late, pa.float64(), "max")
    (low,) = results_of(tmp_path / "low", stored, late, pa.float64(), "min")
    assert math.isnan(high)
    assert low == 5


def test_two_originals_of_one_window_are_refused_and_nothing_is_stored(tmp_path):
    main = Main(tmp_path / "s")
    main.write([("a", 0, 5)], 0)
    values = {"hour": datetime(1970, 1, 1, tzinfo=UTC), "rides": 1}
    TimeSeries.open(tmp_path / "s").append("a", values, datetime(1970, 1, 1, 2, tzinfo=UTC))
    with pytest.raises(UpdateFailed, match="several originals of one window"):
        plan(tmp_path / "s").correct(windows([("a", 0, 2)]), "q", 0)
    assert TimeSeries.open(tmp_path / "s").describe()["events"] == 2


@pytest.mark.parametrize("merge", ["avg", "count"])
def test_unknown_merge_and_missing_columns_are_refused_before_the_query(tmp_path, merge):
    Main(tmp_path / "s")
    some = {"series": "station", "window": "1 hour"}
    with pytest.raises(ValueError, match=f"'{merge}' merges no results; accepted: .*sum"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, merge)}, **some)
    with pytest.raises(IncompatibleValue, match="no value column 'window_start'"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, "sum")}, **some)
    with pytest.raises(IncompatibleValue, match="no value column 'walks'"):
        correct_late(None, str(tmp_path / "s"), {"walks": (None, "sum")}, start="hour", **some)
    with pytest.raises(IncompatibleValue, match="no value column 'rides' of timestamps"):
        correct_late(None, str(tmp_path / "s"), {"rides": (None, "sum")}, start="rides", **some)


# -- what cannot be right is refused before anything is written --------------------------------


def test_stream_without_a_column_of_violations_is_refused_since_rows_in_time_would_count(tmp_path):
    Main(tmp_path / "s")
    rows = SimpleNamespace(columns=["station", "start_time", "cti"])
    some = {"series": "station", "window": "1 hour", "start": "hour"}
    with pytest.raises(IncompatibleValue, match=r"no column 'violation'.*'flag'"):
        correct_late(rows, str(tmp_path / "s"), {"rides": (None, "sum")}, **some)


def test_store_that_gets_no_cti_is_refused_with_its_writer_and_not_one_that_will_get_one(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    some = {"series": "station", "window": "1 hour", "start": "hour"}
    values = {"hour": datetime(1970, 1, 1, 1, tzinfo=UTC), "rides": 1}
    TimeSeries.open(path).append("a", values, datetime(1970, 1, 1, 1, tzinfo=UTC))
    said = r"writer 'batch' gives none.*forget_writer\('batch'\)"
    for correct in (
        lambda: correct_late(None, str(path), {"rides": (None, "sum")}, **some),
        lambda: plan(path).correct(windows([("a", 0, 2)]), "q", 0),
    ):
        with pytest.raises(UpdateFailed, match=said):
            correct()
    assert not (path / "_tseries" / "late").exists()
    TimeSeries.open(path).forget_writer("batch")
    main.write([("a", 2, 5)], 2)
    plan(path).correct(windows([("a", 2, 2)]), "q", 0)
    assert in_force(path)["a", 2][0] == 2


def test_query_without_cti_is_refused_by_its_own_note(tmp_path):
    TimeSeries.create(tmp_path / "s", {"hour": INSTANT, **VALUES}, "unlimited")
    store = Store.open(str(tmp_path / "s"))
    schema = staged_schema(store.values)
    none = schema.empty_table().combine_chunks()
    store.append(Batch(none, "fail", "m", ("tseries:q:m", 0), registers_writer=True))
    store = Store.open(str(tmp_path / "s"))
    refuse_without_ctis(store)  # Its first CTI may yet come.
    note_writer(store.location, "m", 0, None, gives_ctis=False)
    with pytest.raises(UpdateFailed, match=r"writer 'query m' gives none.*option 'ctiDelay'"):
        refuse_without_ctis(store)


def offset(start=0, topic="rides", **settings):
    """The parts of a stream's first offset that say how rows are judged."""
    given = {"ctiFrequency": "1", "ctiDelay": "5 minutes", "violationPolicy": "flag", **settings}
    kept = {name: text for name, text in given.items() if text is not None}
    return {"settings": kept, "partitions": {topic: {"0": {"from": start, "to": 9}}}}


def judged(**differences):
    return read_streams([offset(**differences)], 0)


def noted(tmp_path, **differences):
    """A store written by a query with this offset in its checkpoint."""
    Main(tmp_path / "s")
    (tmp_path / "c" / "offsets").mkdir(parents=True)
    lines = ["v1", '{"batchTimestampMs":1}', json.dumps(offset(**differences))]
    (tmp_path / "c" / "offsets" / "0").write_text("\n".join(lines))
    store = Store.open(str(tmp_path / "s"))
    note_writer(store.location, "main", 0, tmp_path / "c", gives_ctis=True)
    return store


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({}, {"ctiDelay": "10 minutes"}, "'ctiDelay' is '10 minutes' here, and '5 minutes' in"),
        ({}, {"ctiFrequency": "20"}, "option 'ctiFrequency' is '20' here"),
        ({"startTime": "a"}, {}, "option 'startTime' is not set here, and 'a' in the query"),
        ({"maxFuture": "1 hour"}, {}, "option 'maxFuture'"),
        ({}, {"topic": "walks"}, "of topic 'walks', and the windows of topic 'rides'"),
        ({"start": 500}, {"start": 3}, r"'rides-0' from offset 3, and .* from 500 \('startingOff"),
        *(
            ({}, {"violationPolicy": name}, f"'{name}', which keeps no late rows")
            for name in [*POLICIES, "of a later release"]
            if name not in POLICIES or not POLICIES[name].flags_all
        ),
        *(
            ({"violationPolicy": name}, {}, f"'{name}', which moves late rows into later windows")
            for name in [*POLICIES, "of a later release"]
            if name not in POLICIES or POLICIES[name].moves
        ),
        ({"ctiImport": "x"}, {"ctiImport": "x"}, "option 'ctiImport'"),
    ],
)
def test_late_rows_that_were_judged_otherwise_are_refused_by_the_option(
    tmp_path, first, second, said
):
    noted(tmp_path, **first)
    path = tmp_path / "s"
    with pytest.raises(UpdateFailed, match=said):
        plan(path).correct(windows([("a", 0, 2)]), "q", 0, lambda: judged(**second))
    assert not (path / "_tseries" / "late").exists()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        *(({"violationPolicy": name}, {}) for name, policy in POLICIES.items() if not policy.moves),
        ({}, {"endingOffsets": "latest", "valueSchema": "{}"}),
        ({"subscribe": "rides"}, {"subscribePattern": "r.*"}),
        # Another query has judged them.
        ({}, {"topic": "late", "ctiFrequency": None, "ctiDelay": None, "violationPolicy": None}),
        ({"start": 3}, {"start": 500}),
    ],
)
def test_late_rows_that_were_judged_alike_are_taken(tmp_path, caplog, first, second):
    refuse_other_streams(noted(tmp_path, **first), judged(**second))
    assert ("at offset 3 of 'rides-0'" in caplog.text) is ("start" in second)


def test_a_batch_that_cannot_compare_yet_lets_its_windows_wait(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 0, 2)]), "q", 0, lambda: None)
    assert in_force(path)["a", 0][0] == 1
    plan(path).correct(windows([]), "q", 1, judged)
    assert in_force(path)["a", 0][0] == 2
    plan(path).correct(windows([("a", 0, 3)]), "q", 2, lambda: pytest.fail("compared again"))
    assert in_force(path)["a", 0][0] == 3


@pytest.mark.parametrize(
    ("window_us", "length_us", "said"),
    [
        (HOUR_US, HOUR_US, "timestamp 0 ticks after its start.* it would be 1 hour"),
        (2 * HOUR_US, 0, "at 1970-01-01T01:00:00Z is not where a window of 2 hours begins"),
    ],
)
def test_windows_of_another_length_or_timestamp_are_refused(tmp_path, window_us, length_us, said):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    for hour in range(3):
        main.write([("a", hour, 5)], hour)
    wrong = plan(path)
    wrong.rules = replace(wrong.rules, window_us=window_us, offset_us=length_us)
    with pytest.raises(UpdateFailed, match=said):
        wrong.correct(windows([("a", 0, 2)]), "q", 0)
    assert TimeSeries.open(path).describe()["events"] == 3
    right = plan(path)
    right.rules = replace(right.rules, window_us=HOUR_US)
    right.correct(windows([("a", 0, 2)]), "q2", 0)
    assert in_force(path)["a", 0][0] == 2


# -- wrong corrections are withdrawn -----------------------------------------------------------


def withdraw(path, **more):
    return withdraw_corrections(str(path), start="hour", **more)


@settings(max_examples=10, deadline=None)
@given(st.lists(ROW, max_size=20), st.lists(ROW, max_size=8), st.booleans())
def test_after_a_withdrawal_the_right_query_gives_what_it_would_have_given(
    tmp_path_factory, rows, wrong, killed
):
    path = tmp_path_factory.mktemp("s") / "s"
    main, late = Main(path), [row[:3] for row in rows if row[3]]
    in_time = [row[:3] for row in rows if not row[3]]
    for hour in range(8):
        main.write(in_time, hour)
    before = in_force(path)
    plan(path).correct(windows([row[:3] for row in wrong]), "wrong", 0)
    if wrong:
        if killed:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(corrections, "_note_withdrawal", _kill)
                with pytest.raises(KeyboardInterrupt):
                    withdraw(path)
        withdraw(path)
        assert withdraw(path) == 0
        with pytest.raises(UpdateFailed, match=r"query wrong .* have been withdrawn"):
            plan(path).correct(windows([]), "wrong", 1)
    found = {key: values for key, values in in_force(path).items() if values != (None,) * 4}
    assert found == before
    plan(path).correct(windows(late), "right", 0)
    found = {key: values for key, values in in_force(path).items() if values != (None,) * 4}
    assert found == aggregate([*in_time, *late])
    assert verify(str(path)) == []


def _kill(*_):
    raise KeyboardInterrupt


def test_a_withdrawal_stays_in_the_history_with_author_and_reason(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5), ("a", 0, 6)], 0)
    plan(path).correct(windows([("a", 0, 2), ("b", 0, 2)]), "q", 0)
    assert withdraw(path, author="admin", reason="flag was missing") == 2
    series = TimeSeries.open(path).range_query().for_edits()
    events = series.select_from("a").to_arrow().to_pylist()
    assert [(e["rides"], e["author"], e["reason"]) for e in events] == [
        (2, "main", None), (3, "late", "came late"), (2, "admin", "flag was missing"),
    ]  # fmt: skip
    assert in_force(path)["b", 0] == (None,) * 4
    plan(path).correct(windows([("b", 0, 4)]), "right", 0)
    assert in_force(path)["b", 0] == (1, 4, 4, 4)


def test_a_withdrawal_knows_the_authors_of_all_restarts(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    for hour in range(4):
        main.write([("a", hour, 5)], hour)
    before = in_force(path)
    for number, author in enumerate(["one", "two", "two", "three"]):
        rules = replace(plan(path).rules, author=author)
        _Corrector(parse_location(path), rules).correct(windows([("a", number, 2)]), "q", number)
    assert withdraw(path) == 4
    assert in_force(path) == before


def test_a_withdrawal_knows_the_author_of_a_batch_that_a_kill_repeats(tmp_path, monkeypatch):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    before = in_force(path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", _kill)
        with pytest.raises(KeyboardInterrupt):
            plan(path).correct(windows([("a", 0, 2)]), "q", 0)
    rules = replace(plan(path).rules, author="other")
    _Corrector(parse_location(path), rules).correct(windows([("a", 0, 2)]), "q", 0)
    assert withdraw(path) == 1
    assert in_force(path) == before


def test_a_withdrawal_leaves_what_a_user_has_set_since(tmp_path):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 0, 2)]), "q", 0)
    start = datetime(1970, 1, 1, tzinfo=UTC)
    TimeSeries.open(path).edit("a", 0, {"rides": 40, "hour": start})
    assert withdraw(path) == 0
    assert in_force(path)["a", 0][0] == 40


def test_a_query_that_went_on_during_the_withdrawal_is_named(tmp_path, monkeypatch):
    main, path = Main(tmp_path / "s"), tmp_path / "s"
    main.write([("a", 0, 5)], 0)
    plan(path).correct(windows([("a", 0, 2)]), "q", 0)
    note = corrections._note_withdrawal

    def late_note(location, query, batch):
        plan(path).correct(windows([("a", 0, 3)]), "q", 1)
        note(location, query, batch)

    monkeypatch.setattr(corrections, "_note_withdrawal", late_note)
    withdraw(path)
    monkeypatch.undo()
    with pytest.raises(UpdateFailed, match="query q has already corrected"):
        plan(path).correct(windows([("a", 0, 2)]), "right", 0)
    assert withdraw(path) == 1
    plan(path).correct(windows([("a", 0, 2)]), "right", 0)
    assert in_force(path)["a", 0] == (2, 2, 5, 10)


def test_a_store_without_corrections_has_nothing_to_withdraw(tmp_path):
    Main(tmp_path / "s")
    with pytest.raises(UpdateFailed, match="has no corrections of correct_late"):
        withdraw(tmp_path / "s")


def test_old_window_waits_until_it_is_ready_and_is_then_left_out_once():
    rules = WindowRules(KEYS, MERGES, 0, "late", "came late")
    oldest_us = 3 * HOUR_US
    late = windows([("a", 1, 2), ("a", 4, 2)])
    first = advance_windows(late, late.slice(0, 0), rules, cti_us=0, oldest_us=oldest_us)
    assert [t.num_rows for t in (first.ready, first.waiting, first.too_old)] == [0, 2, 0]
    none = late.slice(0, 0)
    then = advance_windows(first.waiting, none, rules, cti_us=9 * HOUR_US, oldest_us=oldest_us)
    assert [t.num_rows for t in (then.ready, then.waiting, then.too_old)] == [1, 0, 1]


def changed(number=5, name="ctiDelay", **differences):
    """The offset of a stream that changed an option at this batch."""
    change = {"number": number, "cti": 0, "from": {name: "1 minute"}, "to": {name: "5 minutes"}}
    return {**offset(**differences), "stream": "0123456789", "changes": [change]}


def test_a_stream_of_the_same_options_is_refused_once_the_writing_query_has_changed(tmp_path):
    store = noted(tmp_path)
    refuse_other_streams(store, judged())
    # Spark ran the batch before the change again first.
    lines = ["v1", '{"batchTimestampMs":1}', json.dumps(changed())]
    (tmp_path / "c" / "offsets" / "1").write_text("\n".join(lines))
    note_writer(store.location, "main", 1, tmp_path / "c", gives_ctis=True)
    with pytest.raises(UpdateFailed, match=r"'changeFrom' is not set here, and 'now: .* batch 5'"):
        refuse_other_streams(store, judged())


def test_a_stream_that_has_changed_is_refused_unless_only_its_idle_timeout_did(tmp_path):
    store = noted(tmp_path)
    with pytest.raises(
        UpdateFailed, match="option 'changeFrom' is 'now: stream 01234567, batch 5'"
    ):
        refuse_other_streams(store, read_streams([changed()], 9))
    refuse_other_streams(store, read_streams([changed(name="idleTimeout")], 9))
