"""The declarative pipeline of docs/how-to/spark-connect.md: a table of a topic, a sink for a store.

`spark-pipelines` of PySpark's own distribution runs it, in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from broker import Broker, Record
from documents import blocks
from kafka_query import DAY_MS

from pyspark_tseries import TimeSeries

PAGE = "docs/how-to/spark-connect.md"


def trip(minute: int) -> Record:
    return Record(json.dumps({"station": "Central", "departed": DAY_MS + 60_000 * minute}))


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_pipeline_has_a_table_of_a_topic_and_a_sink_for_its_windows(
    broker: Broker, topic, tmp_path: Path
) -> None:
    name = topic(1)
    here = {"localhost:9092": broker.bootstrap, '"rides")\n    .option': f'"{name}")\n    .option'}
    write_project(tmp_path, {**here, "/data/": f"{tmp_path}/"})
    broker.produce(name, [trip(minute) for minute in (10, 6, 70, 130)])
    run_pipeline(tmp_path)
    assert stored(tmp_path) == [(0, 2), (1, 1)]
    assert (tmp_path / "spark-warehouse" / "rides").is_dir()


def write_project(place: Path, names: dict[str, str]) -> None:
    """The files of the page, with names of this test."""
    (specification,) = blocks(PAGE, "yaml")
    (code,) = [block for block in blocks(PAGE, "python") if "import pipelines" in block.text]
    (place / "transformations").mkdir()
    files = {"spark-pipeline.yml": specification.text, "transformations/rides.py": code.text}
    for path, text in files.items():
        for written, own in names.items():
            text = text.replace(written, own)
        (place / path).write_text(text)


def run_pipeline(place: Path) -> None:
    done = subprocess.run(
        [str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-pipelines"), "run"],
        cwd=place,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def stored(place: Path) -> list[tuple[int, int]]:
    """The hours of the day with their counts."""
    table = TimeSeries.open(place / "connect-hours").range_query().select_from("Central").to_arrow()
    starts = [round(each.timestamp() * 1000 - DAY_MS) for each in table["timestamp"].to_pylist()]
    hours = [start // 3_600_000 for start in starts]
    return sorted(zip(hours, table["count"].to_pylist(), strict=True))
