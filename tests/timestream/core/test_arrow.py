"""The packages' shared conversions: a process of ours starts without pandas."""

import importlib.util
import subprocess
import sys

import pytest

from pyspark_timestream.core.adapters import _SOURCE_PROCESS

WITHOUT = """
import sys
import numpy as np
import pyarrow as pa
from pyspark_timestream.core.processes import leave_out_pandas

leave_out_pandas()
assert not [finder for finder in sys.meta_path if "Refused" in type(finder).__name__]
assert pa.array([1, None]).null_count == 1
assert pa.table({"a": np.arange(3), "b": ["x", None, "z"]}).num_rows == 3
assert "pandas" not in sys.modules
"""

WITH = """
assert pa.table({"a": [1]}).to_pandas()["a"].tolist() == [1]
import pandas as pd
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
leave_out_pandas()
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
"""

SOURCE = f"""
import sys
from importlib.machinery import ModuleSpec
from pyspark.sql.streaming.datasource import ReadAllAvailable

sys.modules["__main__"].__spec__ = ModuleSpec("{_SOURCE_PROCESS}", None)
from pyspark_timestream.clock.time_options import read_time_options
from pyspark_timestream.clock.reader import TimeStreamReader

reader = TimeStreamReader(read_time_options({{"maxCount": "3", "rate": "max"}}), lambda: 0)
start = reader.initialOffset()
end = reader.latestOffset(start, ReadAllAvailable())
rows = [batch.num_rows for task in reader.partitions(start, end) for batch in reader.read(task)]
assert sum(rows) == 3, rows
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize("code", [WITHOUT, WITHOUT + WITH], ids=["without", "then with"])
def test_arrow_converts_without_pandas_until_something_needs_it(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.spark
def test_the_process_of_a_source_imports_no_pandas_and_spark_still_names_its_module_so() -> None:
    assert importlib.util.find_spec(_SOURCE_PROCESS) is not None
    subprocess.run([sys.executable, "-c", SOURCE], check=True, timeout=60)
