"""The packages' public names: adding or losing one is a decision, not an accident."""

import ast
import inspect
import re
from abc import ABC
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from sources import SOURCES, tree_of

import pyspark_timestream
import pyspark_tseries


def test_the_public_names_of_timestream() -> None:
    names = {"DefaultSource", "PunctuatedProducer", "advance_time", "await_end", "import_ctis"}
    names |= {"configure_spark", "explain_time", "order_by_time", "shift_time", "why"}
    names |= {"TimeMetrics", "alter_lifetime", "end_stream", "measure_lateness", "spark_settings"}
    names |= {"BrokerUnreachable", "CheckpointMismatch", "CheckpointUnreadable", "DataLost"}
    names |= {"DeliveryFailed", "MissingExtra", "OptionError", "SchemaRefused", "SettingRefused"}
    names |= {
        "ReplayDiffers",
        "SchemaRegistryError",
        "TimestreamError",
        "ViolationFound",
        "WrongInterpreter",
    }
    names |= {"__version__", "aggregate_windows"}
    assert set(pyspark_timestream.__all__) == names
    assert all(getattr(pyspark_timestream, name) for name in names)


def test_the_public_names_of_tseries() -> None:
    errors = {"IncompatibleValue", "InvalidQuery", "NoSuchEvent", "NoSuchStore", "UpdateFailed"}
    errors |= {"PermissionDenied", "StoreBusy", "StoreMismatch", "TseriesError", "UnusableStore"}
    errors |= {
        "ConditionFailed",
        "FutureEvent",
        "HistoryChanged",
        "OutOfOrder",
        "ReplayDiffers",
        "StorageFailed",
        "WrongClock",
    }
    results = {"Erasure", "Event", "EventMetadata", "Finding", "Follower", "QueryResult"}
    results |= {"Chart", "CompactionResult", "RollupResult"}
    queries = {"BucketQuery", "BucketResult", "GapQuery", "RangeQuery", "StoreAsOf"}
    names = {"DefaultSource", "TimeSeries", "__version__", "correct_late", *queries}
    names |= {"describe", "withdraw_corrections", *errors, *results}
    assert set(pyspark_tseries.__all__) == names
    assert all(getattr(pyspark_tseries, name) for name in names)


def is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


CONVERTED = {
    "pyspark_timestream.commands.peek.examine.CommandError": "printed by `peek` and `watch`",
    "pyspark_timestream.kafka.client.bounded.CallAbandoned": "becomes a named error",
    "pyspark_timestream.demo.broker.NoDemo": "printed by the command `demo`",
    "pyspark_timestream.errors.ReasonedError": "what TimestreamError and TseriesError share",
    "pyspark_timestream.kafka.decode.protobuf.decode.Misfit": "becomes SchemaRefused",
    "pyspark_tseries.store.shared_commits.Refused": "becomes the error of each caller",
    "pyspark_tseries.store.log_entries.TornEntry": "becomes UnusableStore, or a finding of verify",
}
"""Exceptions with a public name inside their package that no caller of the package sees."""


@pytest.mark.parametrize("package", [pyspark_timestream, pyspark_tseries], ids=lambda p: p.__name__)
def test_every_exception_is_exported_or_private_to_its_package(package: ModuleType) -> None:
    exported = {name for name in package.__all__ if is_exception(getattr(package, name))}
    found = set()
    root = Path(package.__path__[0])
    for path in (path for path in SOURCES if path.is_relative_to(root)):
        module = path.relative_to(root.parent).with_suffix("")
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.add((".".join(module.parts), node.name))
    for module_name, name in found:
        if "native" in module_name or "__main__" in module_name:
            continue
        value = getattr(import_module(module_name.removesuffix(".__init__")), name)
        if is_exception(value):
            assert name in exported or f"{module_name}.{name}" in CONVERTED, (module_name, name)
    for name in exported:
        described = getattr(package, name).__doc__
        assert described
        assert len(described.split()) > 5, name


def test_both_packages_have_the_version_of_their_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", pyspark_timestream.__version__)
    assert pyspark_tseries.__version__ == pyspark_timestream.__version__


CLIENT = [
    value
    for name in pyspark_tseries.__all__
    if isinstance(value := getattr(pyspark_tseries, name), type)
    and not is_exception(value)
    and name != "DefaultSource"
]
"""What the store's client gives; `DefaultSource` is Spark's."""


@pytest.mark.parametrize("kind", CLIENT, ids=lambda kind: kind.__name__)
def test_the_reference_has_each_method_of_the_client_with_its_arguments_and_errors(
    kind: type,
) -> None:
    page = Path("docs/reference/api-tseries.md").read_text()
    shown = re.search(rf"autoclass:: pyspark_tseries\.{kind.__name__}\n((?: +:.*\n)+)", page)
    assert shown is not None
    assert ":members:" in shown[1]
    assert (kind.__mro__[1] in (object, ABC)) or ":inherited-members:" in shown[1]
    for name, method in inspect.getmembers(kind, inspect.isroutine):
        if name.startswith("_") or method.__module__.split(".")[0] != "pyspark_tseries":
            continue
        text = inspect.getdoc(method) or ""
        assert text, name
        given = list(inspect.signature(method).parameters.values())
        given = [known for known in given if known.name != "self"]
        if "Args:" in text:
            for argument in given:
                assert re.search(rf"^ +{argument.name}: ", text, re.MULTILINE), (name, argument)
        elif not re.search(r"(are|is) as for|as `\w+`|see `\w+\.\w+`", text):
            lacking = [known.name for known in given if f"`{known.name}`" not in text]
            assert len(lacking) < 2, (name, lacking)


def test_what_the_client_returns_is_exported() -> None:
    exported = {kind.__name__ for kind in CLIENT} | {"Self", "Any", "Table", "RecordBatchReader"}
    for kind in CLIENT:
        for name, method in inspect.getmembers(kind, inspect.isroutine):
            if name.startswith("_") or not method.__module__.startswith("pyspark_tseries"):
                continue
            told = str(inspect.signature(method).return_annotation)
            for word in re.findall(r"\b[A-Z]\w+", told):
                known = word.startswith(("DuckDB", "DataFrame", "None")) or word == "Iterator"
                assert known or word in exported, (kind.__name__, name, told)
