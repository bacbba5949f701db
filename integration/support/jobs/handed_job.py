"""A stream in small batches that a test kills: `handed_job.py BOOTSTRAP TOPIC PLACE`.

Below PLACE it writes each batch's rows (`rows/batch=N`), and then the number of blocks that Spark
got with the batch (`handed/N`). Run again, it resumes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker import Broker
from handed_blocks import list_blocks
from kafka_query import Stream
from pyspark.sql import DataFrame

OPTIONS = {
    "ctiFrequency": "1",
    "ctiDelay": "2 seconds",
    "violationPolicy": "flag",
    "maxOffsetsPerTrigger": "12",
}


def main() -> None:
    """Read the topic to its end."""
    from spark_session import local_spark

    bootstrap, topic, place = sys.argv[1:]
    spark, handed = local_spark("handed"), Path(place) / "handed"
    handed.mkdir(parents=True, exist_ok=True)
    stream = Stream(spark, Broker(bootstrap, "given"), topic, Path(place), OPTIONS)

    def keep(batch: DataFrame, number: int) -> None:
        blocks = len(list_blocks(spark))
        batch.write.mode("overwrite").parquet(str(stream.place / f"rows/batch={number:06d}"))
        (handed / str(number)).write_text(str(blocks))

    writer = stream.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
    writer.option("checkpointLocation", str(stream.place / "checkpoint")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
