"""Writes and reads as Spark makes them, without Spark."""

import json
import pickle

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_tseries import DefaultSource, TimeSeries
from pyspark_tseries.model.ranges import Query as RangeQuery
from pyspark_tseries.spark.readers import RangeQueryReader
from pyspark_tseries.spark.writer import StagedTask
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store.store import Store
from pyspark_tseries.write import task_output
from pyspark_tseries.write.rows import digest_rows
from pyspark_tseries.write.task_output import TaskOutput

ROWS = StructType().add("series", "string").add("timestamp", "timestamp").add("value", "double")


class Query:
    """A streaming write; its checkpoint has the watermarks that a test gives."""

    def __init__(self, place, name="q", schema=ROWS, **options):
        self.name, self.schema = name, schema
        self.store, self.checkpoint = str(place / "s"), place / f"c-{name}"
        (self.checkpoint / "offsets").mkdir(parents=True)
        given = {"checkpointLocation": str(self.checkpoint), "retainedRange": "unlimited"}
        self.options = {"path": self.store, **given, **options}

    def commit(self, number, *rows, watermark_ms=0, cti_us=None):
        """Commit batch `number` with rows (series, us, value); with None, its entry is torn."""
        line = "{torn" if watermark_ms is None else json.dumps({"batchWatermarkMs": watermark_ms})
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{line}\n{{}}")
        writer = DefaultSource(self.options).streamWriter(self.schema, False)
        schema = writer.target.plan.staged
        rows = [{"series": n, "timestamp": us, "value": float(v)} for n, us, v in rows]
        table = pa.Table.from_pylist(rows, schema)
        inline = task_output.stage(
            parse_location(self.store), table.to_batches(), schema, f"{self.store}/x"
        )
        output = TaskOutput(table.num_rows, table.nbytes, inline)
        task = StagedTask(0, self.name, output, schema, cti_us, digest_rows(table))
        writer.commit([task], number)

    def writers(self):
        return TimeSeries.open(self.store).describe()["cti_writers"]

    def cti(self):
        found = TimeSeries.open(self.store).cti()
        return None if found is None else round(found.timestamp() * 1000)


EVERYTHING = RangeQuery()


def read(path, series=None, schema=None, columns=("series", "sequence"), query=EVERYTHING):
    source = DefaultSource({"path": str(path)})
    snapshot = Store.open(str(path)).snapshot()
    schema = schema or source.schema()
    reader = RangeQueryReader(snapshot, query, series, schema, principal="me")
    reader = pickle.loads(pickle.dumps(reader))  # As Spark sends it to its workers.
    rows = []
    for partition in reader.partitions():
        for got in reader.read(partition):
            rows += zip(*(got[name].to_pylist() for name in columns), strict=True)
    return sorted(rows)
