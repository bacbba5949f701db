"""The rules need neither Spark nor a Kafka client."""

import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_timestream

SPARK = {
    "__init__",
    "source",
    "time_reader",
    "kafka_reader",
    "frames",
    "frame_order",
    "query_explanation",
}
CLIENT = {
    "kafka_client",
    "kafka_broker",
    "kafka_fetch",
    "kafka_driver",
    "producer",
    "producer_transaction",
}
ADAPTERS = SPARK | CLIENT
PURE = sorted(
    path.stem
    for path in Path(pyspark_timestream.__file__).parent.glob("*.py")
    if path.stem not in ADAPTERS
)
WITHOUT = "import sys; sys.modules['pyspark'] = sys.modules['confluent_kafka'] = None; "


@pytest.mark.parametrize("module", PURE)
def test_a_rule_imports_without_spark_and_without_a_client(module):
    code = f"{WITHOUT}import pyspark_timestream.{module}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_most_of_the_transport_is_pure():
    assert {"cti", "frontier", "kafka_plan", "kafka_task", "rows", "json_values"} <= set(PURE)
