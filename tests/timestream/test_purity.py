"""The rules need neither Spark nor a Kafka client."""

import subprocess
import sys
from pathlib import Path

import pyspark_timestream

ROOT = Path(pyspark_timestream.__file__).parent
SPARK = {
    "__init__",
    "source",
    "clock.reader",
    "kafka.reader",
    "connector.evaluation",
    "frames.watermark",
    "frames.ordering",
    "explain.query",
    "connector.session",
    "connector.spark_errors",
}
CLIENT = {
    "kafka.client.config",
    "kafka.client.retry",
    "kafka.client.broker_errors",
    "kafka.client.broker",
    "kafka.client.consumer",
    "kafka.client.native.consumer",
    "kafka.client.range_reader",
    "kafka.client.prefetch",
    "kafka.driver.driver",
    "producer.producer",
    "producer.transaction",
}
ADAPTERS = SPARK | CLIENT
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.rglob("*.py")}
PURE = sorted(MODULES - ADAPTERS)
# One process for all: each start of an interpreter with Arrow costs as much as all the imports.
IMPORTS = """
import importlib, sys, traceback
sys.modules["pyspark"] = sys.modules["confluent_kafka"] = None
for name in sys.argv[1:]:
    try:
        importlib.import_module(f"pyspark_timestream.{name}")
    except Exception as error:
        sys.exit(f"{name}: {traceback.format_exc()}")
"""


def test_the_rules_import_without_spark_and_without_a_client():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *PURE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_most_of_the_transport_is_pure():
    assert {
        "cti.step",
        "cti.stream_cti",
        "kafka.plan.next_offset",
        "kafka.task",
        "kafka.decode.rows",
        "kafka.decode.json.by_block",
    } <= set(PURE)


START = """
import sys
import pyspark.sql.streaming.python_streaming_source_runner
from pyspark_timestream.kafka.reader import KafkaTransport
given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "ctifrequency": "1"}
transport = KafkaTransport(given)
transport.stream_reader(transport.schema())
sys.exit("pandas" in sys.modules)
"""


def test_a_query_starts_without_loading_pandas():
    """Spark starts a process for every stream, and pandas would be a third of what that loads."""
    done = subprocess.run([sys.executable, "-c", START], check=False, timeout=120)
    assert done.returncode == 0
