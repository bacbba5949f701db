"""Spark's Python workers take PySpark from where it is installed, compiled.

Spark puts `SPARK_HOME/python/lib/pyspark.zip` first on their path, and Python compiles what it
imports from a zip anew in every process: some two seconds for each query that starts. A home
without that zip leaves them the installed package, which is the same code.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def use_installed_pyspark() -> None:
    """Set `SPARK_HOME` for this process and all it starts, unless it is set."""
    os.environ.setdefault("SPARK_HOME", str(_home_without_zips()))


def _home_without_zips() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    installed = Path(found.origin).parent
    home = Path(tempfile.gettempdir()) / f"spark-home-{os.getuid()}" / str(installed).lstrip("/")
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        # Another process may have made it since.
        with suppress(FileExistsError):
            (home / name).symlink_to(installed / name)
    return home
