"""Under a policy each principal does what it may and nothing else."""

import itertools
from functools import partial

import pyarrow as pa
import pytest
from tseries.builders import stored

from pyspark_tseries import PermissionDenied, TimeSeries
from pyspark_tseries.permissions import PERMISSIONS, Guard, format_policy, parse_policy
from pyspark_tseries.sink import DefaultSource

VALUE = {"value": pa.float64()}
POLICY = {
    "owner": PERMISSIONS,
    "editor": ["update", "edit", "read"],
    "author": ["update", "edit_own", "read"],
    "sensor": ["update"],
    "reader": ["read"],
    "auditor": ["read", "query_obsolete"],
    "half": ["edit"],
}


@pytest.fixture
def path(tmp_path):
    path = str(tmp_path / "s")
    series = TimeSeries.create(path, VALUE, "limit 100", author="owner", policy=POLICY)
    series.append("a", 0.0)
    return path


def as_(path, principal):
    return TimeSeries.open(path, author=principal)


def allowed(action):
    try:
        action()
    except PermissionDenied:
        return False
    return True


ACTIONS = {
    "append": lambda series: series.append("a", 1.0),
    "edit": lambda series: series.edit("a", 0, 1.0),
    "read": lambda series: series.range_query().select_from("a"),
    "edits": lambda series: series.range_query().for_edits().select_from("a"),
    "edit range": lambda series: series.range_query().edit_range().from_(0).select_from("a"),
}


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        ("owner", {"append", "edit", "read", "edits", "edit range"}),
        ("editor", {"append", "edit", "read"}),
        ("author", {"append", "read"}),
        ("sensor", {"append"}),
        ("reader", {"read"}),
        ("auditor", {"read", "edits", "edit range"}),
        ("half", set()),
        ("stranger", set()),
    ],
)
def test_w16_q37_a_principal_does_what_it_may_and_nothing_else(path, principal, may):
    series = as_(path, principal)
    assert {name for name, action in ACTIONS.items() if allowed(partial(action, series))} == may


def test_w16_who_may_edit_its_own_edits_its_own_and_of_the_same_batch(path):
    series = as_(path, "author")
    mine = series.append("a", 1.0)
    assert series.edit("a", mine.sequence, 2.0).author == "author"
    with pytest.raises(PermissionDenied, match=r"'author' may not edit an event of 'owner'"):
        series.edit("a", 0, 2.0)
    both = {"series": ["b", "b"], "value": [1.0, 2.0], "edit_of": pa.array([None, 0], pa.int64())}
    assert series.append_many(pa.table(both))["sequence"].to_pylist() == [0, 1]


def test_under_a_policy_nobody_writes_in_the_name_of_another(path):
    rows = pa.table({"series": ["a"], "value": [1.0], "author": ["owner"]})
    with pytest.raises(PermissionDenied, match="in the name of 'owner'"):
        as_(path, "sensor").append_many(rows)
    assert as_(path, "owner").append_many(rows).num_rows == 1
    assert stored(path, "author") == [("owner",), ("owner",)]


def test_a_policy_is_changed_for_open_stores_and_survives_rebuilding(path):
    from pyspark_tseries.inspection import rebuild

    sensor = as_(path, "sensor")
    sensor.append("a", 1.0)
    as_(path, "owner").set_policy({"sensor": ["read"]})
    with pytest.raises(PermissionDenied, match="'update'"):
        sensor.append("a", 1.0)
    rebuild(path)
    assert len(sensor.range_query().select_from("a")) == 2
    assert sensor.describe()["policy"] == {"sensor": ("read",)}
    with pytest.raises(PermissionDenied):
        as_(path, "owner").append("a", 1.0)


def test_without_a_policy_all_is_allowed(tmp_path):
    series = TimeSeries.create(str(tmp_path / "s"), VALUE, author="anybody")
    assert all(allowed(partial(action, series)) for action in ACTIONS.values())


def test_spark_asks_for_the_principal_before_any_task(path):
    for principal, query in itertools.product(POLICY, ("values", "allEdits")):
        source = DefaultSource({"path": path, "principal": principal, "query": query})
        schema = source.schema()
        may = {"read"} | ({"query_obsolete"} if query == "allEdits" else set())
        assert allowed(partial(source.reader, schema)) == (may <= set(POLICY[principal]))
    for principal in (*POLICY, "stranger"):
        source = DefaultSource({"path": path, "principal": principal})
        wanted = DefaultSource({"path": path}).schema()["series"]
        rows = type(source.schema())([wanted])
        may_update = "update" in POLICY.get(principal, ())
        assert allowed(partial(source.writer, rows, False)) == may_update
    other = DefaultSource({"path": path, "principal": "sensor", "author": "owner"})
    with pytest.raises(PermissionDenied, match="in the name of 'owner'"):
        other.writer(rows, False)


@pytest.mark.parametrize(
    "wrong", [["a"], {"a": "read"}, {"a": ["write"]}, {1: ["read"]}, {"a": ["read", "Read"]}]
)
def test_what_is_no_policy_is_refused_and_creates_no_store(tmp_path, wrong):
    with pytest.raises(ValueError, match="permission"):
        TimeSeries.create(str(tmp_path / "s"), VALUE, policy=wrong)
    assert not (tmp_path / "s").exists()


def test_a_policy_reads_back_from_its_text():
    import json

    policy = parse_policy(POLICY)
    assert parse_policy(json.loads(format_policy(policy))) == policy
    assert Guard(None, "x").may("update")
    assert not Guard({}, "x").may("update")
