"""The command `peek`: shows ten records of a topic, and prints the options to read it with."""

import argparse
import io
import logging
import shutil
import sys
from collections.abc import Iterable
from typing import Final

from pyspark_timestream.connector.options import OptionError, option_specs
from pyspark_timestream.errors import TimestreamError
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.peek.findings import examine
from pyspark_timestream.peek.records import NoSample
from pyspark_timestream.peek.text import format_findings, to_json

__all__ = ["add_arguments", "add_source_arguments", "main", "read_given"]

_RECORDS: Final = 10

_ARGUMENTS: Final = {
    "subscribe": "--topic",
    "subscribePattern": "--topic",
    "assign": "--topic",
    "kafka.bootstrap.servers": "--bootstrap-servers",
}
"""Options that have an argument of their own."""

_DECLARED: Final = {spec.name.lower(): spec.name for spec in option_specs(KafkaOptions).values()}
_READING: Final = ("kafkaConsumer.", "subscribe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_source_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that `read_given` reads."""
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument(
        "--bootstrap-servers", required=True, metavar="HOST:PORT", help="of one or more brokers"
    )
    parser.add_argument(
        "--schema-registry", metavar="URL", help="of the registry that knows the payloads' schemas"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any option of the source, such as kafka.security.protocol=SSL; may be repeated",
    )


def main(given: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    try:
        raw = read_given(given)
        # Imported late: the rest of this module needs no Kafka client.
        from pyspark_timestream.peek.sample import read_sample

        # The client's log repeats what an error says at its end.
        logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
        sample = read_sample(read_kafka_options(select_reading(raw)), given.topic, _RECORDS)
        findings = examine(sample, raw)
    except (NoSample, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without a letter gets its escape, which is Python's too.
        sys.stdout.reconfigure(errors="backslashreplace")
    print(to_json(findings) if given.json else format_findings(findings, _find_width()))
    return 0


def _find_width() -> int:
    return shutil.get_terminal_size((120, 24)).columns


def read_given(given: argparse.Namespace) -> dict[str, str]:
    """Return the options that the arguments stand for, by the names that they are declared with.

    Raises:
        NoSample: one is not of the form NAME=VALUE, or has an argument of its own.
    """
    raw = {
        "transport": "kafka",
        "kafka.bootstrap.servers": given.bootstrap_servers,
        "subscribe": given.topic,
    }
    if given.schema_registry is not None:
        raw["schemaRegistry.url"] = given.schema_registry
    for name, value in _split_options(given.option):
        if name in raw or name in _ARGUMENTS:
            instead = _ARGUMENTS.get(name, "--schema-registry")
            raise NoSample(f"--option {name} is not needed here: leave it out, or use {instead}")
        raw[name] = value
    return raw


def _split_options(given: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Not shown: it may be a secret whose name was forgotten.
            raise NoSample("an --option is not of the form NAME=VALUE; accepted: name=value")
        lower = name.strip().lower()
        prefix = "schemaregistry."
        if lower.startswith(prefix):
            yield f"schemaRegistry.{lower.removeprefix(prefix)}", value
        else:
            yield _DECLARED.get(lower, lower), value


def select_reading(raw: dict[str, str]) -> dict[str, str]:
    """Select the options that say how records are fetched, and names that are no option's."""
    others = [name for name in _DECLARED.values() if not name.startswith(_READING)]
    return {
        name: text
        for name, text in raw.items()
        if name not in others and not name.startswith("schemaRegistry.")
    }
