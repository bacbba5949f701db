"""A task knows when its evaluation began, and whether its plan is older."""

import pytest
from spark_task import in_task

from pyspark_timestream.core.adapters import find_later_start, read_start_time

pytestmark = pytest.mark.spark

QUERY_ID = "01a204d9-da52-7988-815e-c4603c9b746c"
BEGAN_US = 1_795_377_715_794_000


@pytest.mark.parametrize(
    ("query_id", "us"),
    [
        (QUERY_ID, BEGAN_US),
        ("00000000-0000-7000-8000-000000000000", 0),
        ("ffffffff-ffff-7fff-bfff-ffffffffffff", (2**48 - 1) * 1000),
        ("da803d7e-7533-48cd-8bc5-d501d3bfc081", None),
        ("0", None),
        ("", None),
        (None, None),
    ],
)
def test_began_us_of_a_query_id_is_the_time_in_it(query_id, us):
    assert read_start_time(query_id) == us


@pytest.mark.parametrize(
    ("planned_us", "later_us"),
    [(BEGAN_US - 1, BEGAN_US), (BEGAN_US, None), (BEGAN_US + 3_000_000, None)],
)
def test_find_later_start_is_told_only_of_an_evaluation_after_the_plan(planned_us, later_us):
    with in_task(spark__sql__execution__query__id=QUERY_ID):
        assert find_later_start(planned_us) == later_us


def test_find_later_start_outside_of_a_task_or_in_an_rdd_is_none():
    assert find_later_start(0) is None
    with in_task():
        assert find_later_start(0) is None
