"""Under a policy each principal does what it may and nothing else."""

import contextlib
import importlib
import inspect
import itertools
import pkgutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tseries.builders import batch, forget_stores, stored

import pyspark_tseries
from pyspark_tseries import PermissionDenied, TimeSeries, describe
from pyspark_tseries.__main__ import OWNER_COMMANDS, main
from pyspark_tseries.maintain.background import maintain
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.erase import erase
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.model.properties import PERMISSIONS, AccessCheck, format_policy, parse_policy
from pyspark_tseries.options import os_user
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


OWNERS_METHODS = {
    "set_policy": lambda series: series.set_policy({"x": ["read"]}),
    "set_retained_range": lambda series: series.set_retained_range("limit 1"),
    "the same range": lambda series: series.set_retained_range("limit 100"),
    "add_columns": lambda series: series.add_columns({"note": pa.string()}),
    "widen_columns": lambda series: series.widen_columns({}),
    "set_units": lambda series: series.set_units({"value": "°C"}),
    "compact": lambda series: series.compact(),
    "erase": lambda series: series.erase("a", 0, "asked for"),
    "forget_writer": lambda series: series.forget_writer("batch"),
}
"""The methods that are an owner's only."""

DOORS = {
    "maintain.background.maintain": maintain,
    "maintain.compactor.compact": compact,
    "maintain.erase.erase": lambda path, **who: erase(Store.open(path), "a", 0, "asked for", **who),
    "maintain.rebuild.rebuild": rebuild,
    "maintain.repair.repair": repair,
    "options.ReadOptions": lambda path, **who: _reader(path, who).reader(_schema(path)),
    "options.SubscribeOptions": lambda path, **who: _open_subscription(path, who),
    "options.WriteOptions": lambda path, **who: _reader(path, who).writer(_rows(path), False),
    "write.batch.Batch": lambda path, **who: Store.open(path).append(
        replace(batch(("b", 1)), author=os_user(), **who)
    ),
}
"""A call of each function or class with an optional `principal`."""

COMMANDS_REST = {
    "erase": ["--series", "a", "--sequence", "0", "--reason", "asked for"],
    "forget-writer": ["--writer", "batch"],
}


def _reader(path, who):
    return DefaultSource({"path": path, **{k: v for k, v in who.items() if v is not None}})


def _schema(path):
    return DefaultSource({"path": path}).schema()


def _rows(path):
    schema = _schema(path)
    return type(schema)([schema["series"]])


def _open_subscription(path, who):
    return _reader(path, who)._open_subscription(_schema(path))


def _declared():
    """Yield each function or class of the package that has a parameter `principal`."""
    for found in pkgutil.walk_packages(pyspark_tseries.__path__, "pyspark_tseries."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            if getattr(thing, "__module__", None) != found.name or not callable(thing):
                continue
            methods = vars(thing).items() if inspect.isclass(thing) else ()
            inner = [(f"{name}.{n}", m) for n, m in methods if inspect.isfunction(m)]
            for known, function in [(name, thing), *inner]:
                with contextlib.suppress(ValueError):
                    principal = inspect.signature(function).parameters.get("principal")
                    if principal is not None and not known.endswith(".__init__"):
                        yield f"{found.name}.{known}".removeprefix("pyspark_tseries."), principal


def test_nobody_is_never_a_principal_but_at_the_doors_that_take_the_os_user():
    declared = dict(_declared())
    assert {"store.admin_commits.require_owner", "spark.readers.RangeQueryReader"} <= set(declared)
    left_out = {name for name, principal in declared.items() if principal.default is None}
    assert left_out == set(DOORS)
    for name in set(declared) - left_out:
        assert declared[name].annotation in (str, "str"), name
        assert declared[name].default is inspect.Parameter.empty, name


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("who", [{}, {"principal": None}])
def test_a_missing_user_is_the_os_user_and_no_way_around_the_policy(path, door, who):
    before = DeltaTable(path).version()
    with pytest.raises(PermissionDenied, match=f"'{os_user()}' may not"):
        DOORS[door](path, **who)
    assert DeltaTable(path).version() == before
    Store.open(path)
    TimeSeries.open(path, "owner").set_policy({os_user(): PERMISSIONS})
    DOORS[door](path, **who)


def test_every_owners_method_has_a_case():
    documented = {
        name
        for name, method in vars(TimeSeries).items()
        if "the author is not an owner" in (getattr(method, "__doc__", None) or "")
    }
    assert documented == set(OWNERS_METHODS) - {"the same range"}


@pytest.mark.parametrize("method", OWNERS_METHODS)
def test_an_owners_method_is_an_owners_only(path, method):
    before = DeltaTable(path).version(), describe(path)
    for who in (*POLICY, "stranger", None):
        if who != "owner":
            named = who or os_user()
            with pytest.raises(PermissionDenied, match=rf"'{named}' may not .* 'own'"):
                OWNERS_METHODS[method](as_(path, who))
    assert (DeltaTable(path).version(), describe(path)) == before
    OWNERS_METHODS[method](as_(path, "owner"))


@pytest.mark.parametrize("door", [name for name in DOORS if name.startswith("maintain.")])
def test_an_owners_call_is_an_owners_only(path, door):
    before = DeltaTable(path).version(), describe(path)
    for who in (*POLICY, "stranger"):
        if who != "owner":
            with pytest.raises(PermissionDenied, match=rf"'{who}' may not .* 'own'"):
                DOORS[door](path, principal=who)
    assert (DeltaTable(path).version(), describe(path)) == before
    DOORS[door](path, principal="owner")


@pytest.mark.parametrize("command", OWNER_COMMANDS)
def test_on_the_command_line_too_who_asks_is_the_os_user_or_named(path, command, capsys):
    rest = COMMANDS_REST.get(command, [])
    assert main([command, path, *rest]) == 1
    assert "may not" in capsys.readouterr().err
    assert main([command, path, *rest, "--principal", "reader"]) == 1
    assert main([command, path, *rest, "--principal", "owner"]) == 0


def test_owner_permission_is_checked_on_a_torn_head_or_log(path):
    (head,) = Path(path, "_tseries", "head").iterdir()
    for file in (head, Path(path, "_delta_log", f"{1:020d}.json")):
        whole = file.read_bytes()
        file.write_bytes(b"")
        forget_stores()
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
