"""The rules need neither Spark nor a Kafka client, and a query starts without pandas."""

import subprocess
import sys
from pathlib import Path

import pyspark_timestream

ROOT = Path(pyspark_timestream.__file__).parent
RULES = ["cti", "kafka/options", "kafka/plan", "kafka/decode", "kafka/task.py", "kafka/ranges.py"]
ADAPTERS = {
    "__main__",
    "source",
    "clock.reader",
    "connector.catalog_tables",
    "connector.evaluation",
    "connector.session.settings",
    "connector.spark_errors",
    "demo.topic",
    "explain.query",
    "frames.cti_watch",
    "frames.end",
    "frames.ordering",
    "frames.lifetimes",
    "frames.plans",
    "frames.watermark",
    "frames.server_requests",
    "kafka.client.bounded",
    "kafka.client.broker",
    "kafka.client.broker_errors",
    "kafka.client.config",
    "kafka.client.consumer",
    "kafka.client.described_times",
    "kafka.client.native.consumer",
    "kafka.client.prefetch",
    "kafka.client.range_reader",
    "kafka.client.retry",
    "kafka.driver.driver",
    "kafka.driver.restored_states",
    "kafka.reader",
    "metrics.listener",
    "lateness.read",
    "kafka.writer.commits",
    "kafka.writer.stream_writer",
    "peek.sample",
    "producer.batch_transaction",
    "producer.entries",
    "producer.producer",
    "producer.requests",
    "producer.transaction",
}
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


def modules(place: str) -> list[str]:
    paths = [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")
    return [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]


def test_the_rules_import_without_spark_and_without_a_client():
    names = sorted({*modules(".")} - ADAPTERS)
    assert {name for place in RULES for name in modules(place)} <= {*names}
    assert {*modules(".")} > ADAPTERS
    assert len(names) > 60
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


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


def test_only_the_registry_imports_the_registrys_client():
    naming = {
        str(path.relative_to(ROOT).parent)
        for path in ROOT.rglob("*.py")
        if "import" in path.read_text() and "confluent_kafka.schema_registry" in path.read_text()
    }
    assert naming == {"kafka/registry"}
