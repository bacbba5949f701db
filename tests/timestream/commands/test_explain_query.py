"""A watermark beside the CTIs, and state without any, are seen in a query's plan or progress."""

from dataclasses import dataclass

import pytest

from pyspark_timestream.commands.explain_query import (
    find_plan_mistakes,
    find_progress_mistake,
    note_partitions,
)
from pyspark_timestream.kafka.diagnosis.diagnoses import Kind

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Operator:
    """An operator as `ClassicOperator` reads it."""

    name: str
    inputs: tuple["Operator", ...] = ()
    watermark: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def is_stream(self):
        return bool(self.columns) or any(each.is_stream for each in self.inputs)


CTIS = Operator("StreamingDataSourceV2ScanRelation", columns=("value", "start_time", "cti"))
CLOCK = Operator("StreamingDataSourceV2ScanRelation", columns=("timestamp", "value"))
TABLE = Operator("LogicalRelation")


def over(name, *inputs, **more):
    return Operator(name, inputs, **more)


def marked(column, source=CTIS):
    return over("EventTimeWatermark", over("Project", source), watermark=column)


def kinds(root):
    return [found and found.kind for found in find_plan_mistakes(root)]


@pytest.mark.parametrize("name", ["Aggregate", "Deduplicate", "TransformWithState", "Distinct"])
def test_state_without_a_watermark_on_the_ctis_names_advance_time(name):
    (found,) = find_plan_mistakes(over("Write", over(name, over("Filter", CTIS))))
    assert (found.kind, found.cause) == (Kind.NO_ADVANCE_TIME, name)
    assert "advance_time" in found.fix


def test_a_watermark_on_another_column_names_the_column_and_advance_time():
    (found,) = find_plan_mistakes(over("Aggregate", marked("start_time")))
    assert found.kind is Kind.OWN_WATERMARK
    assert "'start_time'" in found.cause
    assert "advance_time" in found.fix


def test_advance_time_below_the_state_is_right_whatever_is_above():
    assert kinds(over("Aggregate", over("Filter", marked("cti")))) == [None]
    assert kinds(over("Aggregate", over("Aggregate", marked("cti")))) == [None]
    assert kinds(over("Aggregate", over("Union", CTIS, CLOCK))) == [Kind.NO_ADVANCE_TIME, None]
    assert kinds(over("Aggregate", marked("cti", over("Union", CTIS, CTIS)))) == [None, None]


def test_a_stream_without_ctis_may_have_a_watermark_of_its_own():
    assert kinds(over("Aggregate", marked("timestamp", CLOCK))) == [None]
    assert kinds(over("Filter", CTIS)) == [None]


def test_a_join_has_state_where_both_sides_are_streams():
    assert kinds(over("Join", CTIS, CTIS)) == [Kind.NO_ADVANCE_TIME] * 2
    assert kinds(over("Join", CTIS, TABLE)) == [None]
    assert kinds(over("Join", marked("cti"), marked("start_time"))) == [None, Kind.OWN_WATERMARK]


def test_a_prefix_of_the_metadata_does_not_hide_the_ctis():
    prefixed = Operator("Scan", columns=("value", "k_cti"))
    assert kinds(over("Aggregate", prefixed)) == [Kind.NO_ADVANCE_TIME]
    assert kinds(over("Aggregate", marked("k_cti", prefixed))) == [None]


@pytest.mark.parametrize(
    ("operators", "watermark", "kind"),
    [
        ([{}], None, Kind.NO_ADVANCE_TIME),
        ([{}], "2024-01-01T00:00:09.001Z", Kind.OWN_WATERMARK),
        ([{}], "2024-01-01T00:00:09.000Z", None),
        ([], None, None),
    ],
)
def test_a_progress_shows_state_whose_watermark_is_none_or_ahead_of_the_ctis(
    operators, watermark, kind
):
    progress = {"stateOperators": operators, "eventTime": {"watermark": watermark}}
    found = find_progress_mistake(progress, {"cti": "2024-01-01T00:00:09Z"})
    assert (found and found.kind) == kind
    assert find_progress_mistake(progress, {"cti": None}) is None


@pytest.mark.parametrize(
    ("partitions", "rows", "cores", "is_noted"),
    [
        (200, 12, 2, True),
        (200, 19_999, 25, True),
        (200, 20_000, 2, False),
        (200, 12, 26, False),
        (32, 0, 1, True),
        (31, 0, 1, False),
    ],
)
def test_a_state_of_few_rows_in_many_partitions_is_noted(partitions, rows, cores, is_noted):
    small = {"numShufflePartitions": 4, "numRowsTotal": 0}
    large = {"numShufflePartitions": partitions, "numRowsTotal": rows}
    note = note_partitions({"stateOperators": [small, large]}, cores)
    assert (note is not None) == is_noted
    assert note_partitions({"stateOperators": [small]}, cores) is None
    assert note_partitions({}, cores) is None
