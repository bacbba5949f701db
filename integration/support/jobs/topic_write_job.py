"""A job to kill: windows of an out-of-order topic into another one, with their marks.

`topic_write_job.py BOOTSTRAP SOURCE TARGET PLACE`; run again, it resumes. The first attempt at one
row fails, so that Spark tries its task again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from spark_session import local_spark
from writing import TopicJob, counted, fail_once


def main() -> None:
    """Run to the end of the source."""
    bootstrap, source, target, place = sys.argv[1:]
    spark = local_spark("writes", "local[2,3]")
    broker: Any = type("Address", (), {"bootstrap": bootstrap})
    job = TopicJob(spark, broker, source, target, Path(place))
    limit = {"maxOffsetsPerTrigger": "60", "ctiDelay": "10 seconds", "finalCti": "true"}
    rows = counted(job.load(**limit))
    failing = F.udf(fail_once('"second":60', Path(place) / "failed"), StringType())
    job.run(rows.withColumn("value", failing("value")), ctiFrom="watermark")
    spark.stop()


if __name__ == "__main__":
    main()
