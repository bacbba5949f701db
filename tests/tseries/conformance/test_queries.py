"""Diffusion's conformance cases of queries and their builder, through the client; by number."""

import numpy as np
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType
from tseries.cases import CASES, INVALID, build, ms, shown

from pyspark_tseries import IncompatibleValue, InvalidQuery, RangeQuery
from pyspark_tseries.model.ranges import NO_LIMIT
from pyspark_tseries.options import ReadOptions, parse_options
from pyspark_tseries.spark.source import DefaultSource

QUERY = RangeQuery()


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_through_the_client(stores, case):
    assert shown(case.ask(stores[case.store].range_query()).select_from("s")) == case.expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_through_the_reader_that_spark_plans_with(stores, case):
    path = stores[case.store].describe()["path"]
    source = DefaultSource({"path": path, **{k.lower(): v for k, v in case.options.items()}})
    reader = cloudpickle.loads(cloudpickle.dumps(source.reader(source.schema())))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = [(row["sequence"], row["original_sequence"]) for row in rows]
    assert " ".join(f"{s}>{o}" if o is not None else f"{s}" for s, o in found) == case.expected


@pytest.mark.parametrize("case", [*CASES, *INVALID], ids=str)
def test_the_options_of_spark_ask_the_same(case):
    asked = parse_options(ReadOptions, {"path": "/s", **case.options}).to_query()
    mine = case.ask(QUERY).query
    assert asked == mine


@pytest.mark.parametrize("case", INVALID, ids=str)
def test_q23_a_relative_time_needs_an_anchor_with_a_timestamp(stores, case):
    with pytest.raises(InvalidQuery, match=r"series 's'.*no timestamp"):
        case.ask(stores[case.store].range_query()).select_from("s")
    assert case.ask(stores[case.store].range_query()).select_from("nobody").events == ()


def test_q33_a_limit_of_0_is_complete_only_where_nothing_was_found(stores):
    query = stores["S2"].range_query().limit(0)
    assert not query.select_from("s").is_complete
    assert query.from_(100).select_from("s").is_complete


def test_q35_only_a_limit_leaves_events_out(stores):
    for query in (stores["S3"].range_query(), stores["S3"].range_query().for_edits()):
        found = query.select_from("s")
        assert found.is_complete
        assert found.selected_count == len(found.events)
        assert query.limit(3).select_from("s").selected_count == found.selected_count


def test_q36_values_are_read_as_the_type_that_they_have(stores):
    source = DefaultSource({"path": stores["S2"].describe()["path"]})
    wrong = StructType([*source.schema()[:4], StructField("value", StringType())])
    with pytest.raises(IncompatibleValue, match="'value' is asked for as string"):
        source.reader(wrong)


def test_q1_the_values_are_those_of_the_latest_edits(stores):
    events = stores["S1"].range_query().select_from("s").events
    assert [event.value for event in events] == [103.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: QUERY.from_(-1),
        lambda: QUERY.to(-1),
        lambda: QUERY.limit(-1),
        lambda: QUERY.next(-1),
        lambda: QUERY.from_last(ms(-1)),
        lambda: QUERY.until_last(True),
        lambda: QUERY.previous("3"),
    ],
)
def test_q34_negative_numbers_are_refused_when_the_query_is_built(wrong):
    with pytest.raises(InvalidQuery, match="next step"):
        wrong()


def test_numbers_of_numpy_are_numbers():
    assert QUERY.from_(np.int64(3)).limit(np.int32(4)) == QUERY.from_(3).limit(4)


def test_q34_negative_absolute_times_are_allowed():
    from datetime import UTC, datetime

    assert QUERY.from_(datetime(1960, 1, 1, tzinfo=UTC)).query.view.anchor.value < 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: QUERY.for_edits().edit_range(),
        lambda: QUERY.for_values().all_edits(),
        lambda: QUERY.latest_edits(),
    ],
)
def test_e11_steps_of_the_other_kind_of_query_are_refused_at_once(wrong):
    with pytest.raises(InvalidQuery, match="call for_"):
        wrong()


def test_e12_beginning_anew_resets_the_ranges_and_keeps_the_limit():
    used = QUERY.from_(3).to(5).edit_range().from_(7).limit(4)
    assert used.for_values() == QUERY.limit(4)
    assert used.for_edits() == QUERY.for_edits().limit(4)
    assert used.for_values().from_start().until_last(0).limit(NO_LIMIT) == QUERY


def test_e13_an_edit_operator_resets_the_edit_range_and_keeps_the_view():
    query = QUERY.for_edits().from_(3)
    assert query.all_edits().from_(7).to(9).all_edits() == query.all_edits()
    assert query.all_edits().from_(7).latest_edits() == query.latest_edits()
    assert QUERY.edit_range().from_(7).edit_range() == QUERY.edit_range()


def test_e14_all_edits_are_all_edits():
    assert QUERY.for_edits().all_edits().query.kind == "allEdits"


def test_e15_the_last_anchor_and_the_last_span_win_each_for_itself():
    assert QUERY.from_(3).to(5).from_(4) == QUERY.to(5).from_(4)
    edits = QUERY.for_edits().from_(1).all_edits().from_(3).to(5).from_(4)
    assert edits == QUERY.for_edits().from_(1).all_edits().to(5).from_(4)


def test_e16_a_later_result_is_merged_into_an_earlier_one(stores):
    query = stores["S3"].range_query()
    early = query.edit_range().to(10).select_from("s")
    late = query.for_edits().all_edits().from_(11).select_from("s")
    merged = early.merge(late)
    assert shown(early) == "0 1 2 3 10>4 5 6 7 8 9"
    assert shown(merged) == "0 1 2 3 12>4 5 6 7 8 9 11"
    assert merged.is_complete
    assert shown(late.merge(early)) == "0 1 2 3 12>4 5 6 7 8 9 11"
    orphan = query.for_edits().from_(4).to(4).all_edits().from_(12).select_from("s")
    assert shown(orphan) == "12>4"
    before = query.to(3).limit(2).select_from("s")
    assert not before.is_complete
    assert shown(orphan.merge(before)) == "2 3 12>4"
    assert orphan.merge(before).is_complete
