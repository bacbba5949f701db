"""Spark's own Kafka source and `from_avro`, fetched from Maven Central by the Ivy that Spark ships.

`from_protobuf` cannot be had: `spark-protobuf` is not resolved in any version for Spark 4.
"""

import fcntl
import subprocess
from pathlib import Path

import pyspark

PLACE = Path(__file__).parents[2] / ".work" / "peers"
# Each without its dependencies; together they run on Spark 4.3, which has none of its own yet.
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
# From Spark 4.1, the last release that published it; it runs on 4.3.
AVRO_ARTIFACTS = (("org.apache.spark", "spark-avro_2.13", "4.1.1"),)


def kafka_jars() -> str:
    """The jars' paths, separated by commas, for `spark.jars`."""
    return _jars(ARTIFACTS)


def avro_jars() -> str:
    """The same with `from_avro`."""
    return _jars(ARTIFACTS + AVRO_ARTIFACTS)


def _jars(artifacts: tuple[tuple[str, str, str], ...]) -> str:
    PLACE.mkdir(parents=True, exist_ok=True)
    # Two test runs may begin at once.
    with (PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return ",".join(str(jar(*artifact)) for artifact in artifacts)


def jar(organisation: str, module: str, revision: str) -> Path:
    jar = PLACE / f"{module}-{revision}.jar"
    if not jar.exists():
        _fetch(organisation, module, revision)
    return jar


def _fetch(organisation: str, module: str, revision: str) -> None:
    recipe = PLACE / f"{module}.xml"
    recipe.write_text(
        f"""<ivy-module version="2.0"><info organisation="timestream" module="{module}-peer"/>
        <configurations><conf name="default"/></configurations><dependencies>
        <dependency org="{organisation}" name="{module}" rev="{revision}" transitive="false"
        conf="default->default"/></dependencies></ivy-module>"""
    )
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    command = ["java", "-jar", str(ivy), "-ivy", str(recipe), "-confs", "default"]
    command += ["-cache", str(PLACE / "ivy"), "-retrieve", f"{PLACE}/[artifact]-[revision].[ext]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(f"Ivy could not fetch {module} {revision}:\n{done.stdout[-2000:]}")
