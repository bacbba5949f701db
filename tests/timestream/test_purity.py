"""The rules need neither Spark nor a Kafka client, and a query starts without pandas."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pyspark_timestream

ROOT = Path(pyspark_timestream.__file__).parent
RULES = "rules reach neither Spark, Kafka nor Delta"
# One process for all: each start of an interpreter with Arrow costs as much as all the imports.
IMPORTS = """
import importlib, sys, traceback
sys.modules.update(dict.fromkeys(["pyspark", "confluent_kafka", "deltalake"]))
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        sys.exit(f"{name}: {traceback.format_exc()}")
"""


def modules(name: str) -> list[str]:
    """The modules of a line: itself, and all below it."""
    package, *path = name.split(".")
    place = Path(import_module(package).__path__[0], *path)
    below = sorted(place.rglob("*.py")) if place.is_dir() else []
    return [name, *(".".join([name, *x.relative_to(place).with_suffix("").parts]) for x in below)]


def test_the_rules_import_without_spark_kafka_and_delta():
    """The import contracts see each import; this sees what an import of ours makes others do."""
    settings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]
    settings = settings["importlinter"]["contracts"]  # import-linter
    rules = next(each for each in settings if each["name"] == RULES)
    names = [module for name in rules["source_modules"] for module in modules(name)]
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
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if "import" in path.read_text() and "confluent_kafka.schema_registry" in path.read_text()
    }
    assert naming == {"kafka/registry.py"}
