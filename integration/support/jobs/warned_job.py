"""Runs queries one after the other and prints their sources' reports; the log is its stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from spark_session import local_spark

from pyspark_timestream import explain_time


def main(queries: list[dict[str, Any]]) -> None:
    """Run each of `queries`: its `name`, `options`, `schema` or none, and `checkpoint` or none.

    Without a checkpoint it is a batch read, which has only the log.
    """
    spark = local_spark("warned")
    for asked in queries:
        is_batch = "checkpoint" not in asked
        reader = (spark.read if is_batch else spark.readStream).format("timestream")
        reader = reader.options(**asked["options"])
        frame = (reader.schema(asked["schema"]) if asked.get("schema") else reader).load()
        if is_batch:
            frame.write.format("noop").mode("overwrite").save()
            continue
        writer = frame.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", asked["checkpoint"]).start()
        query.awaitTermination()
        report = json.loads(query.lastProgress.sources[0].latestOffset)
        headline = next(line for line in str(explain_time(query)).splitlines() if line[:2] == "=>")
        said = {"name": asked["name"], "warnings": report["warnings"], "headline": headline}
        print(json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
