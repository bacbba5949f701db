"""Errors of ours leave a Spark worker without their traceback, and everything else with it."""

from __future__ import annotations

import inspect
import io
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.util import handle_worker_exception

import pyspark_timestream
import pyspark_tseries
from pyspark_timestream import OptionError, TimestreamError
from pyspark_timestream.core.adapters import hide_tracebacks
from pyspark_tseries import TseriesError

pytestmark = pytest.mark.spark

ENTRIES = (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)


@hide_tracebacks
class Adapter:
    """An adapter that Spark calls."""

    def build(self, error: Exception) -> None:
        raise error

    def rows(self, error: Exception) -> Iterator[int]:
        yield 1
        raise error

    def _own(self) -> None: ...


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as one of Spark's workers."""
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name="pyspark.daemon")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def sent_to_the_driver(error: Exception, method: str = "build") -> str:
    """Spark's worker's text for `error`."""
    sent = io.BytesIO()
    try:
        list(getattr(Adapter(), method)(error) or ())
    except Exception as raised:
        handle_worker_exception(raised, sent)
    return sent.getvalue()[8:].decode()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("method", ["build", "rows"])
def test_error_of_ours_in_a_worker_is_one_line(method: str) -> None:
    error = OptionError("a", "cannot be", "b", "correct it")
    assert sent_to_the_driver(error, method) == f"pyspark_timestream.OptionError: {error}\n"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("method", ["build", "rows"])
def test_foreign_error_in_a_worker_keeps_its_traceback(method: str) -> None:
    sent = sent_to_the_driver(KeyError("a fault of ours"), method)
    assert sent.startswith("Traceback (most recent call last):\n")
    assert f"in {method}\n" in sent


def test_error_of_ours_outside_a_worker_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    assert "Traceback" in sent_to_the_driver(OptionError("a", "b", "c", "d"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_adapters_keep_the_signatures_that_spark_looks_at() -> None:
    assert list(inspect.signature(Adapter.rows).parameters) == ["self", "error"]
    assert not hasattr(Adapter._own, "__wrapped__")


def adapters() -> list[type]:
    """Every class of ours that Spark's workers call."""
    found = []
    for package in (pyspark_timestream, pyspark_tseries):
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            if "DataSource" in path.read_text():
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                module = import_module(f"{package.__name__}.{name}")
                classes = [each for _, each in inspect.getmembers(module, inspect.isclass)]
                found += [each for each in classes if each.__module__ == module.__name__]
    return [each for each in found if issubclass(each, ENTRIES)]


def test_every_class_that_spark_calls_is_brief_about_errors() -> None:
    classes = adapters()
    assert len(classes) >= 10
    for each in classes:
        methods = [method for name, method in vars(each).items() if not name.startswith("_")]
        functions = [method for method in methods if inspect.isfunction(method)]
        assert functions
        assert all(hasattr(method, "__wrapped__") for method in functions), each


def every_subclass(of: type) -> Iterator[type]:
    for each in of.__subclasses__():
        yield each
        yield from every_subclass(each)


def test_errors_are_called_by_the_name_that_they_are_imported_by() -> None:
    for base, package in ((TimestreamError, pyspark_timestream), (TseriesError, pyspark_tseries)):
        for error in (base, *every_subclass(base)):
            assert getattr(package, error.__name__) is error
    assert OptionError.__module__ == "pyspark_timestream"


def test_errors_import_without_spark() -> None:
    script = (
        'import sys; sys.modules["pyspark"] = None; from pyspark_timestream import why, DataLost'
    )
    subprocess.run([sys.executable, "-c", script], check=True)
