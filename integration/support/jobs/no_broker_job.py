"""A stream from a broker that does not answer: `no_broker_job.py ADDRESS TIMEOUT_MS CHECKPOINT`."""

from __future__ import annotations

import sys

from spark_session import local_spark


def main() -> None:
    address, timeout_ms, checkpoint = sys.argv[1:]
    spark = local_spark("no broker")
    rows = (
        spark.readStream.format("timestream")
        .option("transport", "kafka")
        .option("kafka.bootstrap.servers", address)
        .option("kafkaConsumer.connectTimeoutMs", timeout_ms)
        .option("subscribe", "trips")
        .load()
    )
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
