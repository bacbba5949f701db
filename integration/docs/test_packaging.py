"""A wheel in a clean virtual environment: both formats are found without a register call.

PyPI would take it: its tag says which glibc it needs, and its metadata is complete.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import os
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
clock = spark.readStream.format("timestream").option("rate", "max").option("maxCount", "3").load()
query = clock.writeStream.format("tseries").option("seriesName", "clock")
store = os.path.abspath("store")
query = query.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start(store)
query.awaitTermination()
print("rows", spark.read.format("tseries").load(store).count())

import importlib.metadata, pyspark_timestream, pyspark_tseries
version = importlib.metadata.version("pyspark-timestream")
assert version == pyspark_timestream.__version__ == pyspark_tseries.__version__, version
"""


@pytest.mark.outside_ci
@pytest.mark.timeout(900)
def test_a_built_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, cwd=tmp_path)
    if shutil.which("cc"):
        # PyPI takes no other platform of Linux, and auditwheel finds the same by the ELF itself.
        platform = wheel.stem.split("-")[-1]
        assert re.fullmatch(r"manylinux_\d+_\d+_[a-z0-9_]+", platform)
        audit = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=tmp_path)
        assert f'"{platform}"' in audit
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {
        "pyspark_timestream", "pyspark_tseries",
    }  # fmt: skip
    assert {"pyspark_timestream/py.typed", "pyspark_tseries/py.typed"} <= set(names)
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    # The same Spark as here, which takes a minute to install; everything else as the wheel's
    # metadata asks for it.
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    for name in ("pyspark", "py4j"):
        link_package(name, packages)
    run(python, "-m", "pip", "install", "-q", "--no-compile", wheel, cwd=tmp_path)
    installed = run(python, "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
    assert f"pyspark=={metadata.version('pyspark')}\n" in installed
    assert "rows 3" in run(python, "-c", SCRIPT, cwd=tmp_path)


def link_package(name: str, packages: Path) -> None:
    """Put a package of this environment, as pip knows it, into another one."""
    here = Path(str(metadata.distribution(name).locate_file("")))
    for each in (here / name, *here.glob(f"{name}-*.dist-info")):
        (packages / each.name).symlink_to(each)


def run(*command: object, cwd: Path) -> str:
    """The output of a command that succeeds, with its interpreter's directory first on PATH."""
    bin_directory = str(Path(str(command[0])).parent)
    ours = ("PYSPARK_", "PYTHONPATH", "SPARK_HOME")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    environment = kept | {"PATH": f"{bin_directory}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout
