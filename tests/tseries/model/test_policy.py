"""Under a policy each principal does what it may and nothing else."""

import itertools
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tseries.builders import stored

from pyspark_tseries import PermissionDenied, TimeSeries, describe
from pyspark_tseries.__main__ import main
from pyspark_tseries.maintain.background import maintain
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair.repair import repair
from pyspark_tseries.model.policy import PERMISSIONS, AccessCheck, format_policy, parse_policy
from pyspark_tseries.spark.source import DefaultSource
from pyspark_tseries.store.store import Store

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


def test_policy_refuses_an_author_other_than_the_principal(path):
    rows = pa.table({"series": ["a"], "value": [1.0], "author": ["owner"]})
    with pytest.raises(PermissionDenied, match="in the name of 'owner'"):
        as_(path, "sensor").append_many(rows)
    assert as_(path, "owner").append_many(rows).num_rows == 1
    assert stored(path, "author") == [("owner",), ("owner",)]


def test_a_policy_is_changed_for_open_stores_and_survives_rebuilding(path):
    sensor = as_(path, "sensor")
    sensor.append("a", 1.0)
    as_(path, "owner").set_policy({"sensor": ["read"]})  # Its owner remains one.
    with pytest.raises(PermissionDenied, match="'update'"):
        sensor.append("a", 1.0)
    rebuild(path, principal="owner")
    assert len(sensor.range_query().select_from("a")) == 2
    assert sensor.describe()["policy"] == {"owner": ("own",), "sensor": ("read",)}
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


OWNERS_CALLS = {
    "policy": lambda path, who: as_(path, who).set_policy({"x": ["read"]}),
    "range": lambda path, who: as_(path, who).set_retained_range("limit 1"),
    "same range": lambda path, who: as_(path, who).set_retained_range("limit 100"),
    "compact": lambda path, who: as_(path, who).compact(),
    "compact it": lambda path, who: compact(path, principal=who),
    "rebuild": lambda path, who: rebuild(path, principal=who),
    "repair": lambda path, who: repair(path, principal=who),
    "maintain": lambda path, who: maintain(path, principal=who),
}


@pytest.mark.parametrize("call", OWNERS_CALLS)
def test_an_owners_call_is_an_owners_only(path, call):
    before = DeltaTable(path).version(), describe(path)
    for who in (*POLICY, "stranger"):
        if who != "owner":
            with pytest.raises(PermissionDenied, match=rf"'{who}' may not .* '{'own'}'"):
                OWNERS_CALLS[call](path, who)
    assert (DeltaTable(path).version(), describe(path)) == before
    OWNERS_CALLS[call](path, "owner")


@pytest.mark.parametrize("command", ["compact", "rebuild", "repair", "maintain"])
def test_on_the_command_line_too_who_asks_is_the_os_user_or_named(path, command, capsys):
    assert main([command, path]) == 1
    assert "may not" in capsys.readouterr().err
    assert main([command, path, "--principal", "reader"]) == 1
    assert main([command, path, "--principal", "owner"]) == 0


def test_owner_permission_is_checked_on_a_torn_head_or_log(path):
    (head,) = Path(path, "_tseries", "head").iterdir()
    for file in (head, Path(path, "_delta_log", f"{1:020d}.json")):
        whole = file.read_bytes()
        file.write_bytes(b"")
        Store.forget_all()
        with pytest.raises(PermissionDenied, match="'reader' may not repair"):
            repair(path, principal="reader")
        assert repair(path, principal="owner", dry_run=True).mended
        file.write_bytes(whole)


def test_who_sets_a_policy_without_an_owner_is_its_owner(tmp_path):
    path = str(tmp_path / "s")
    series = TimeSeries.create(path, VALUE, author="boss", policy={"ann": ["read"]})
    assert series.describe()["policy"] == {"ann": ("read",), "boss": ("own",)}
    series.set_policy({"ann": ["read", "own"]})
    with pytest.raises(PermissionDenied, match="'boss' may not set the policy"):
        series.set_policy({})
    as_(path, "ann").set_policy({})
    assert series.describe()["policy"] == {"ann": ("own",)}


def test_in_a_store_without_a_policy_anybody_may_set_the_first(tmp_path):
    path = str(tmp_path / "s")
    TimeSeries.create(path, VALUE, author="a")
    as_(path, "b").set_policy({"a": ["read"]})
    with pytest.raises(PermissionDenied, match="'a' may not set the policy"):
        as_(path, "a").set_policy({"a": ["own"]})


def test_a_policy_reads_back_from_its_text():
    import json

    policy = parse_policy(POLICY)
    assert parse_policy(json.loads(format_policy(policy))) == policy
    assert AccessCheck(None, "x").may("update")
    assert not AccessCheck({}, "x").may("update")
