"""Spark finds the format without help, and this needs nothing that could be missing."""

import subprocess
import sys

import pytest

PURE = [
    "rules.ticks",
    "clock.time_options",
    "errors",
    "core.instants",
    "core.checkpoint",
    "core.declarations",
]
IMPORT_WITHOUT = """
import sys
for name in ("pyspark", "confluent_kafka", "deltalake", "pandas"):
    sys.modules[name] = None
import pyspark_timestream{}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["", *(f".{name}" for name in PURE)])
def test_the_package_and_its_rules_import_without_spark_and_kafka(module):
    subprocess.run([sys.executable, "-c", IMPORT_WITHOUT.format(module)], check=True)


def test_public_names_are_frozen_and_lazy():
    import pyspark_timestream

    assert set(pyspark_timestream.__all__) >= {
        "DefaultSource",
        "advance_time",
        "await_end",
        "shift_time",
    }
    assert pyspark_timestream.DefaultSource.name() == "timestream"
    with pytest.raises(AttributeError, match="'pyspark_timestream' has no attribute 'Kafka'"):
        _ = pyspark_timestream.Kafka


def test_sparks_own_lookup_finds_the_format_without_register():
    """The lookup takes `DefaultSource` of every top-level module named `pyspark_*`."""
    script = """
from importlib import import_module
from pkgutil import iter_modules
names = [m.name for m in iter_modules() if m.name.startswith("pyspark_")]
assert "pyspark_timestream" in names, names
print(import_module("pyspark_timestream").DefaultSource.name())
"""
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert found.stdout.decode().strip() == "timestream"


@pytest.mark.spark
@pytest.mark.session
def test_a_fresh_session_loads_the_format_without_register():
    script = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.readStream.format("timestream").load().schema.simpleString())
spark.stop()
"""
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert found.stdout.decode().strip() == "struct<timestamp:timestamp,value:bigint>"
