"""The command `demo`: starts a broker, fills a topic with trips, and prints the query to paste."""

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark_timestream.demo.broker import (
    JARS,
    KAFKA_VERSION,
    KafkaProcess,
    NoDemo,
    create_topics,
    fetch_jars,
    find_java,
    find_user_cache,
    free_port,
    has_jars,
    locked,
    wait_for_broker,
)
from pyspark_timestream.demo.data import (
    DEMO_TOPIC,
    LAG_HOURS,
    LAGGING,
    STATIONS,
    STOPS_DESCRIPTORS,
    make_topics_of_pages,
    make_trips,
    serve_registry,
)
from pyspark_timestream.demo.progress import show_progress
from pyspark_timestream.errors import compose_message

ADDRESS: Final = "localhost:9092"

EXAMPLE: Final = """\
import json
from tempfile import mkdtemp

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_timestream import advance_time, configure_spark

spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()

trips = (
    spark.readStream.format("timestream")
    .option("transport", "kafka")
    .option("kafka.bootstrap.servers", "localhost:9092")
    .option("subscribe", "trips")
    .option("startingOffsets", "earliest")
    .option("valueFormat", "json")
    .option("startTime", "departed")  # a field of the JSON value is the event's time
    .option("ctiFrequency", "10")  # in each partition a CTI at every tenth event,
    .option("ctiDelay", "5 minutes")  # five minutes behind it
    .option("finalCti", "true")  # the end of this run is the end of the stream
    .schema("station string, minutes double, start_time timestamp, cti timestamp")
    .load()
)

hourly = (
    advance_time(trips)  # Spark's watermark follows the CTIs from here
    .groupBy("station", F.window("start_time", "1 hour").alias("hour"))
    .agg(F.count("*").alias("trips"), F.avg("minutes").alias("mean_minutes"))
    .select(
        F.col("station").alias("series"),
        F.col("hour.start").alias("timestamp"),
        "trips",
        "mean_minutes",
    )
)

place = mkdtemp(prefix="trips-")
query = (
    hourly.writeStream.format("tseries")
    .option("retainedRange", "unlimited")  # else a store shows the last ten events of a series
    .option("checkpointLocation", f"{place}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{place}/store")
)
query.awaitTermination()

store = spark.read.format("tseries").load(f"{place}/store")
store.groupBy("timestamp").pivot("series").sum("trips").orderBy("timestamp").show()
report = json.loads(query.lastProgress.sources[0].latestOffset)
print(report["events"], "trips,", report["dropped"], "dropped")
"""


def example(address: str) -> str:
    """Return the example for a broker at `address`."""
    return EXAMPLE.replace(ADDRESS, address)


_DEFAULT_PORT: Final = 9092
_REGISTRY_PORT: Final = 8081
_DATA: Final = "/data"
_POLL_INTERVAL_S: Final = 0.2

_READY: Final = """
Topic {topic} is at {address}: {count:,} trips in {partitions} partitions. Partition {lagging},
{station}'s, is {hours} hours behind the others.

In a second terminal save this as trips.py, and run it with
    {python} trips.py

{example}
"""
_TOPICS_READY: Final = """
The topics of the documentation's pages are at {address}:
    {topics}
A schema registry with their schemas is at {registry}.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--port", type=int, help=f"of the broker; default: {_DEFAULT_PORT}, or a free one"
    )
    parser.add_argument(
        "--seconds", type=float, help="end after this time; default: run until Ctrl-C"
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--run", action="store_true", help="run the printed query, show its result, and end"
    )
    mode.add_argument(
        "--topics",
        action="store_true",
        help="make the topics that the pages of the documentation use, and their schema registry",
    )
    parser.add_argument(
        "--registry-port",
        type=int,
        help=f"of the schema registry; default: {_REGISTRY_PORT}, or a free one",
    )
    parser.add_argument(
        "--data", default=_DATA, help=f"the directory that pages write to; default: {_DATA}"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    # SIGTERM raises KeyboardInterrupt, so it also ends the broker and removes its data.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if arguments.seconds is not None and not arguments.seconds >= 0:  # A NaN is none.
            raise NoDemo(f"--seconds is {arguments.seconds}; accepted: 0 or more")
        with _broker(arguments.port) as (port, server):
            return _demonstrate(arguments, f"localhost:{port}", server)
    except (NoDemo, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nThe broker has ended, and its data is removed.")
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def choose_port(port: int | None, default: int = _DEFAULT_PORT, name: str = "--port") -> int:
    """Return the port to use: `port` if given, else the default one, else a free one.

    Raises:
        NoDemo: `port` is in use, or is not a port.
    """
    if port is not None and not 0 < port < 65_536:
        raise NoDemo(compose_message(f"{name} is {port}", "1 to 65535"))
    with socket.socket() as probe:
        # The broker sets this, too: a connection that has just ended does not occupy the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or default))
        except PermissionError:
            raise NoDemo(f"port {port} needs root: choose one above 1023") from None
        except OSError:
            if port is not None:
                raise NoDemo(
                    f"port {port} is in use: choose another with {name}, or leave it out for a "
                    "free one"
                ) from None
            print(f"Port {default} is in use: a free one is taken.", flush=True)
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _broker(port: int | None) -> Iterator[tuple[int, KafkaProcess]]:
    """Run a broker that answers, and close it when the block ends; give its port, too."""
    with ExitStack() as stack:
        # Demos start one after another: a port looks free until its broker listens.
        with locked(find_user_cache(), "start"):
            chosen = choose_port(port)
            server = _create_broker(chosen)
            stack.callback(server.close)
            with show_progress("Starting a Kafka broker", 6):
                server.start()
                wait_for_broker(server)
        yield chosen, server


def _create_broker(port: int) -> KafkaProcess:
    # Spark needs Java, too: check before anything is fetched.
    java = find_java()
    cache = find_user_cache()
    if not has_jars(cache):
        with show_progress(
            f"Fetching Kafka {KAFKA_VERSION} from Maven Central (once, 44 MB)", 40
        ) as doing:
            fetched = 0

            def count(line: str) -> None:
                nonlocal fetched
                fetched += "[SUCCESSFUL ]" in line
                doing.done = min(fetched / JARS, 1.0) if fetched else None
                doing.detail = line.strip()

            fetch_jars(cache, java, count)
    directory = Path(tempfile.mkdtemp(prefix="timestream-demo-"))
    return KafkaProcess(fetch_jars(cache, java), directory, (port, free_port()), java=java)


def _demonstrate(arguments: argparse.Namespace, address: str, server: KafkaProcess) -> int:
    if arguments.topics:
        return _serve_pages(arguments, address, server)
    count = create_topics(address, {DEMO_TOPIC: make_trips()})[DEMO_TOPIC]
    print(_format_instructions(address, count), flush=True)
    if arguments.run:
        print("Running it (about 30 s):", flush=True)
        return subprocess.run([sys.executable, "-c", example(address)], check=False).returncode
    print("The broker runs until Ctrl-C, which also removes its data.", flush=True)
    _wait(arguments.seconds, server)
    return 0


def _serve_pages(arguments: argparse.Namespace, address: str, server: KafkaProcess) -> int:
    with ExitStack() as stack:
        with locked(find_user_cache(), "start"):
            port = choose_port(arguments.registry_port, _REGISTRY_PORT, "--registry-port")
            stack.enter_context(serve_registry(port))
        with show_progress("Making the topics of the pages", 3):
            counts = create_topics(address, make_topics_of_pages())
        facts = {"address": address, "registry": f"http://localhost:{port}"}
        topics = ", ".join(f"{name} ({count:,})" for name, count in counts.items())
        print(_TOPICS_READY.format(**facts, topics=topics), end="", flush=True)
        for line in _list_differences(arguments.data, address, port):
            print(line)
        print("All of it runs until Ctrl-C, which also removes its data.", flush=True)
        _wait(arguments.seconds, server)
    return 0


def _list_differences(data: str, address: str, registry_port: int) -> Iterator[str]:
    """Yield the steps that a reader must take before the pages run as they are."""
    try:
        Path(data).mkdir(parents=True, exist_ok=True)
        Path(data, "stops.desc").write_bytes(STOPS_DESCRIPTORS)
    except OSError as error:
        yield (
            f"The pages write below {data}, and this user cannot ({error.strerror}). Make it with\n"
            f"    sudo install -d -o $USER {data}\nand start this again."
        )
    usual = {
        f"localhost:{_DEFAULT_PORT}": address,
        f"http://localhost:{_REGISTRY_PORT}": f"http://localhost:{registry_port}",
        _DATA: data,
    }
    for name, used in usual.items():
        if used != name:
            yield f"Where the pages say {name}, put {used}."


def _format_instructions(address: str, count: int) -> str:
    facts: dict[str, Any] = {"address": address, "count": count, "example": example(address)}
    facts |= {"topic": DEMO_TOPIC, "partitions": len(STATIONS), "python": sys.executable}
    facts |= {"lagging": LAGGING, "station": STATIONS[LAGGING], "hours": LAG_HOURS}
    return _READY.format(**facts)


def _wait(seconds: float | None, server: KafkaProcess) -> None:
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is None or time.monotonic() < deadline:
        server.check()
        time.sleep(_POLL_INTERVAL_S)
