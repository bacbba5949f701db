"""A small streaming job for the harness's own tests: files in, a Delta table out.

The sink is the simplest exactly-once sink: a Delta commit with the batch id as the transaction
version. With `--twice` it does not check whether the batch is there already.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from spark_session import local_spark


@dataclass
class Rows(WriterCommitMessage):
    """A task's message to the commit."""

    ids: list[int]


class PlainDelta(DataSource):
    """The sink's registration."""

    @classmethod
    def name(cls) -> str:
        return "plain_delta"

    def streamWriter(self, schema: Any, overwrite: bool) -> PlainDeltaWriter:
        return PlainDeltaWriter(self.options["path"], self.options["twice"] == "true")


class PlainDeltaWriter(DataSourceStreamArrowWriter):
    """Appends each batch in one commit."""

    def __init__(self, path: str, twice: bool) -> None:
        self._path, self._twice = path, twice

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        return Rows([int(each) for batch in iterator for each in batch["value"].to_pylist()])

    def commit(self, messages: list[Any], batchId: int) -> None:
        import deltalake as delta

        table = pa.table({"id": pa.array([i for m in messages for i in m.ids], pa.int64())})
        if delta.DeltaTable.is_deltatable(self._path) and not self._twice:
            known = delta.DeltaTable(self._path).transaction_version("sample")
            if known is not None and batchId <= known:
                return
        txn = delta.CommitProperties(app_transactions=[delta.Transaction("sample", batchId)])
        delta.write_deltalake(self._path, table, mode="append", commit_properties=txn)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--twice", default="false")
    arguments = parser.parse_args()
    where = arguments.directory
    spark = local_spark("sample")
    spark.dataSource.register(PlainDelta)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{where}/in")
    writer = lines.writeStream.format("plain_delta").option("path", f"{where}/out")
    writer = writer.option("twice", arguments.twice).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{where}/checkpoint").start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
