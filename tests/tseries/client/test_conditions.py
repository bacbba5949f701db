"""set, open_or_create, conditional appends and new columns (semantics 35)."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pyspark_tseries import (
    ConditionFailed,
    IncompatibleValue,
    PermissionDenied,
    TimeSeries,
    UnusableStore,
)

CELSIUS = {"celsius": pa.float64()}


@pytest.fixture
def store(tmp_path):
    return TimeSeries.create(tmp_path / "s", CELSIUS, "unlimited", "ann", auto_compact=False)


def values(store, series="a"):
    return [event.value for event in store.range_query().select_from(series).events]


def test_set_appends_with_the_time_of_now(store):
    assert store.set("a", 1.0).sequence == 0
    assert store.set("a", 2.0).sequence == 1
    assert values(store) == [1.0, 2.0]


def test_a_condition_sees_what_latest_shows_and_so_no_event_that_edits_have_hidden(tmp_path):
    store = TimeSeries.create(tmp_path / "s", CELSIUS, "limit 1", auto_compact=False)
    store.append("a", 1.0)
    store.edit("a", 0, 2.0)
    assert store.latest("a").events == ()
    seen = []
    store.append("a", 3.0, expected_sequence=1, if_newest=lambda newest: not seen.append(newest))
    assert seen == [None]


def test_an_append_is_stored_only_after_the_expected_sequence(store):
    first = store.append("a", 1.0, expected_sequence=-1)
    for wrong in (-1, 1, 7):
        with pytest.raises(ConditionFailed, match="has sequence 0") as raised:
            store.append("a", 9.0, expected_sequence=wrong)
        assert raised.value.sequence == 0
        assert raised.value.next_step
    store.append("a", 2.0, expected_sequence=first.sequence)
    edit = store.edit("a", 0, 1.5)
    with pytest.raises(ConditionFailed, match="has sequence 2"):
        store.append("a", 9.0, expected_sequence=1)
    store.append("a", 3.0, expected_sequence=edit.sequence)
    assert values(store) == [1.5, 2.0, 3.0]


def test_a_condition_that_has_to_be_awaited_is_refused_by_name(store):
    """A coroutine counts as true: the event was stored, even if the condition did not hold."""

    async def never(_):
        return False

    with pytest.raises(IncompatibleValue, match=r"must be awaited; .* not async. Nothing"):
        store.append("a", 1.0, if_newest=never)
    assert not len(store.latest("a"))


def test_a_condition_sees_the_current_value_of_the_newest_original(store):
    seen = []

    def is_new(event):
        seen.append(None if event is None else event.value)
        return event is None or event.value != 2.0

    store.append("a", 1.0, if_newest=is_new)
    store.append("a", 5.0, if_newest=is_new)
    store.edit("a", 1, 2.0)
    with pytest.raises(ConditionFailed, match="the condition does not hold") as raised:
        store.append("a", 3.0, if_newest=is_new)
    assert raised.value.sequence == 2
    assert seen == [None, 1.0, 2.0]
    assert values(store) == [1.0, 2.0]


@pytest.mark.parametrize("name", [None, 5, b"a", "\ud800"])
def test_a_condition_on_what_is_no_name_is_refused(store, name):
    with pytest.raises(IncompatibleValue, match="is not the name of a series"):
        store.append(name, 1.0, if_newest=lambda _: True)


@pytest.mark.parametrize("condition", [5, "x", True])
def test_a_condition_that_is_no_function_is_refused_by_name(store, condition):
    with pytest.raises(IncompatibleValue, match="is not a function") as refused:
        store.append("a", 1.0, if_newest=condition)
    assert refused.value.next_step
    assert store.series().num_rows == 0


def test_both_conditions_must_hold(store):
    store.append("a", 1.0)
    with pytest.raises(ConditionFailed, match="has sequence 0"):
        store.append("a", 2.0, expected_sequence=3, if_newest=lambda _: True)
    with pytest.raises(ConditionFailed, match="does not hold"):
        store.append("a", 2.0, expected_sequence=0, if_newest=lambda _: False)
    store.append("a", 2.0, expected_sequence=0, if_newest=lambda _: True)
    assert values(store) == [1.0, 2.0]


def test_an_erasure_meanwhile_asks_the_condition_again(store):
    store.append("a", 1.0)
    asked = []

    def holds(event):
        if not asked:
            store.erase("a", 0, "private")
        asked.append(event.value)
        return True

    store.append("a", 2.0, if_newest=holds)
    assert asked == [1.0, None]


def test_a_retained_range_that_is_set_meanwhile_asks_the_condition_again(store):
    """The event was stored by a value that an edit hid by then."""
    store.append("a", 1.0)
    store.edit("a", 0, 2.0)
    asked = []

    def holds(event):
        if not asked:
            store.set_retained_range("limit 1")
            store.set_retained_range("unlimited")
        asked.append(event and event.value)
        return True

    store.append("a", 3.0, if_newest=holds)
    assert asked == [2.0, None]


def test_one_of_several_writers_that_expect_the_same_succeeds(store):
    def add(number):
        try:
            store.append("a", float(number), expected_sequence=-1)
        except ConditionFailed:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(add, range(8))) == 1
    assert len(values(store)) == 1


@pytest.mark.thorough
def test_a_counter_of_many_threads_and_processes_loses_no_step(store, tmp_path):
    code = f"""
from pyspark_tseries import TimeSeries
store = TimeSeries.open({str(tmp_path / "s")!r}, auto_compact=False)
def count(times):
    for _ in range(times):
        seen = []
        def note(event):
            seen.append(0.0 if event is None else event.value)
            return True
        while True:
            newest = store.range_query().from_last(1).select_from("a").events
            try:
                at = newest[-1].sequence if newest else -1
                value = newest[-1].value if newest else 0.0
                store.append("a", value + 1, expected_sequence=at)
                break
            except Exception as error:
                if type(error).__name__ != "ConditionFailed":
                    raise
count(10)
"""
    jobs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [job.wait(120) for job in jobs] == [0, 0]
    assert values(store) == [float(number) for number in range(1, 21)]


@pytest.mark.parametrize("wrong", ["1", 1.0, True])
def test_what_is_no_sequence_is_refused(store, wrong):
    with pytest.raises(IncompatibleValue, match="is not a sequence"):
        store.append("a", 1.0, expected_sequence=wrong)
    assert values(store) == []


def test_open_or_create_creates_once_and_opens_afterwards(tmp_path):
    path = tmp_path / "s"
    for value in (1.0, 2.0):
        store = TimeSeries.open_or_create(path, CELSIUS, "last 7D", auto_compact=False)
        store.append("a", value)
    assert values(store) == [1.0, 2.0]
    with pytest.raises(IncompatibleValue, match=r"no column 'humidity' .double") as raised:
        TimeSeries.open_or_create(path, {**CELSIUS, "humidity": pa.float64()})
    assert "add_columns" in raised.value.next_step
    with pytest.raises(IncompatibleValue, match="no column 'celsius'"):
        TimeSeries.open_or_create(path, {"celsius": pa.int64()})
    with pytest.raises(UnusableStore, match="keeps 'last 7D', not 'limit 5'"):
        TimeSeries.open_or_create(path, CELSIUS, "limit 5")
    with pytest.raises(ValueError, match="durability"):
        TimeSeries.open_or_create(path, CELSIUS, durability="maybe")


def test_open_or_create_and_add_columns_take_a_column_in_any_case(tmp_path):
    """The next step was to add it with add_columns, which gave the same error."""
    TimeSeries.create(tmp_path / "s", {"Celsius": pa.float64()})
    again = TimeSeries.open_or_create(tmp_path / "s", {"celsius": pa.float64()})
    again.add_columns({"CELSIUS": pa.float32()})
    assert again.append("a", 1.0).sequence == 0
    assert again.latest().table["Celsius"].to_pylist() == [1.0]


def test_open_or_create_of_many_threads_makes_one_store(tmp_path):
    def go(number):
        store = TimeSeries.open_or_create(tmp_path / "s", CELSIUS, "unlimited", auto_compact=False)
        return store.append("a", float(number)).sequence

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(go, range(6))) == list(range(6))


def test_added_columns_are_null_before_and_can_be_named_at_once(store):
    store.append("a", 1.0)
    store.add_columns({"humidity": pa.float64(), "place": pa.struct([("room", pa.string())])})
    store.append("a", {"celsius": 2.0, "humidity": 40.0, "place": {"room": "k"}})
    table = store.range_query().select_from("a").to_arrow()
    assert table["humidity"].to_pylist() == [None, 40.0]
    assert table["place"].to_pylist() == [None, {"room": "k"}]
    store.add_columns({"humidity": pa.float64()})  # It is there.
    assert len(store.range_query().select_from("a").to_arrow().schema) == len(table.schema)


class Reading(dict):
    """A value that lets another thread change the columns while it is converted."""

    def __init__(self, value, change):
        super().__init__(value)
        self.change = change

    def items(self):
        change, self.change = self.change, lambda: None
        change()
        return super().items()


@pytest.mark.parametrize("how", ["add", "widen"])
def test_an_append_is_stored_though_another_thread_changes_the_columns_meanwhile(tmp_path, how):
    kinds = {"celsius": pa.float32()}
    store = TimeSeries.create(tmp_path / "s", kinds, "unlimited", auto_compact=False)
    store.append("a", 1.0)
    value = Reading(
        {"celsius": 2.0},
        lambda: (
            store.add_columns({"humidity": pa.float64()})
            if how == "add"
            else store.widen_columns(CELSIUS)
        ),
    )
    assert store.append("a", value).sequence == 1
    events = store.range_query().select_from("a").to_arrow()
    assert events["celsius"].to_pylist() == [1.0, 2.0]
    assert store.verify() == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"celsius": pa.int64()}, "is there as double"),
        ({"Celsius": pa.int64()}, "is there as double"),
        ({"series": pa.string()}, "named like what an event has anyway"),
        ({"x": pa.float64(), "X": pa.float64()}, "two value columns"),
        (None, "None does not name value columns"),
        (5, "5 does not name value columns"),
        ("x", "'x' does not name value columns"),
        ({"x": "number"}, "does not name value columns: No type alias for number"),
        ({"x": None}, "does not name value columns"),
        ({5: pa.int64()}, "does not name value columns"),
    ],
)
def test_columns_that_cannot_be_added_are_refused(store, columns, said):
    with pytest.raises(IncompatibleValue, match=said):
        store.add_columns(columns)
    assert [field.name for field in TimeSeries.open(store._store.root)._store.values] == ["celsius"]


def test_only_an_owner_adds_columns(tmp_path):
    TimeSeries.create(tmp_path / "s", CELSIUS, author="ann", policy={"bob": ["update", "read"]})
    with pytest.raises(PermissionDenied, match="may not add columns"):
        TimeSeries.open(tmp_path / "s", "bob").add_columns({"x": pa.int64()})


def test_appends_and_edits_of_tasks_go_on_beside_each_other(store):
    async def write():
        events = await asyncio.gather(*(store.append_async("a", float(n)) for n in range(5)))
        await store.edit_async("a", 0, 9.0)
        return events

    events = asyncio.run(write())
    assert sorted(event.sequence for event in events) == list(range(5))
    assert values(store)[0] == 9.0
