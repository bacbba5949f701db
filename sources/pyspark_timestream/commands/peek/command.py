"""The command `peek`: shows ten records of a topic, and prints the options to read it with."""

import argparse
import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.commands.peek.detect import Detection, format_schema_id
from pyspark_timestream.commands.peek.examine import (
    Candidate,
    CommandError,
    TopicReport,
    TopicSample,
    examine,
)
from pyspark_timestream.core.arrow import Integers
from pyspark_timestream.core.declarations import check_given, is_secret, suggests_secret
from pyspark_timestream.core.instants import format_instant
from pyspark_timestream.errors import OptionError, TimestreamError
from pyspark_timestream.kafka.decode.records import ColumnSet, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import SPECS, KafkaOptions
from pyspark_timestream.kafka.options.keys import read_registry_settings
from pyspark_timestream.kafka.ranges import OffsetRange, Partition
from pyspark_timestream.kafka.schemas import ReaderSchema
from pyspark_timestream.report import (
    align_within,
    format_count,
    join_sections,
    shorten_duration,
)

if TYPE_CHECKING:
    from pyspark_timestream.kafka.client.range_reader import RangeReader


_GROUP: Final = "timestream-peek"
"""A consumer must name a group; this one never joins it and commits nothing to it."""

_REACHES: Final = (1, 20, 500)
"""Read this many offsets per requested record; if they hold too few records, the next number.

Markers of transactions and compaction leave gaps.
"""

_MAX_PARTITIONS: Final = 32
_ALL: Final = ColumnSet(timestamps=True, keys=True, values=True, headers=True)


def _read_sample(options: KafkaOptions, topic: str, count: int) -> TopicSample:
    """Read the `count` newest records of a topic by their timestamps."""
    from pyspark_timestream.kafka.client.broker import Broker
    from pyspark_timestream.kafka.client.range_reader import RangeReader

    broker = Broker(options, _GROUP)
    try:
        partitions = broker.partitions()
        if not partitions:
            brokers = options.client["bootstrap.servers"]
            raise CommandError(f"topic '{topic}' does not exist at {brokers}")
        firsts, ends = broker.earliest(partitions), broker.ends(partitions)
    finally:
        broker.close()
    sizes = {
        partition: end - firsts[partition] for partition, end in ends.items() if partition in firsts
    }
    filled = [partition for partition in sorted(sizes) if sizes[partition] > 0]
    reader = RangeReader(options, _GROUP)
    try:
        newest = {
            partition: _read_newest(reader, partition, firsts[partition], ends[partition], count)
            for partition in islice(filled, _MAX_PARTITIONS)
        }
    finally:
        reader.close()
    blocks = {partition: block for partition, block in newest.items() if block is not None}
    return TopicSample(topic, len(partitions), sum(sizes.values()), _select_newest(blocks, count))


def _read_newest(
    reader: "RangeReader", partition: Partition, earliest: int, end: int, count: int
) -> RecordBlock | None:
    """Read the last records of one partition; None if there are none within reach."""
    blocks: list[RecordBlock] = []
    for reach in _REACHES:
        start = max(earliest, end - count * reach)
        blocks = list(reader.read(OffsetRange(partition, start, end), _ALL))
        if start == earliest or sum(len(block.offsets) for block in blocks) >= count:
            break
    if not blocks:
        return None
    columns = (pa.concat_arrays(column) for column in zip(*blocks, strict=True))
    block = RecordBlock(*columns)
    return _take_rows(block, np.arange(max(0, len(block.offsets) - count), len(block.offsets)))


def _select_newest(
    blocks: Mapping[Partition, RecordBlock], count: int
) -> tuple[tuple[Partition, RecordBlock], ...]:
    """Return the `count` records with the newest timestamps, by partition and in offset order."""
    times: list[tuple[int, Partition, int]] = []
    for partition, block in blocks.items():
        assert block.timestamps_ms is not None, "all columns are read"
        times += [(ms, partition, row) for row, ms in enumerate(block.timestamps_ms.to_pylist())]
    newest_rows: dict[Partition, list[int]] = {}
    for _, partition, row in sorted(times)[-count:]:
        newest_rows.setdefault(partition, []).append(row)
    return tuple(
        (partition, _take_rows(blocks[partition], np.array(sorted(rows))))
        for partition, rows in sorted(newest_rows.items())
    )


def _take_rows(block: RecordBlock, rows: Integers) -> RecordBlock:
    indexes = pa.array(rows, pa.int64())
    return RecordBlock(*(column if column is None else column.take(indexes) for column in block))


_HIDDEN: Final = "..."
_LOGIN: Final = re.compile("kafka[.]sasl[.](username|oauthbearer[.]client[.]id)", re.I)
_DELAY_COMMENT: Final = (
    "CTIs need a delay of at least the topic's disorder, and ten records show too little of it:",
    "see what each would drop, and choose one: python -m pyspark_timestream lateness",
)


def _hide_option(name: str, value: str) -> str:
    """Return the value of an option, or dots if it is a secret."""
    return _HIDDEN if is_secret(name, value) or _LOGIN.fullmatch(name) else value


def format_snippet(options: Mapping[str, str], columns: Sequence[str]) -> str:
    """Format code that reads a stream with these options and columns; secrets become dots."""
    lines = ["stream = (", '    spark.readStream.format("timestream")']
    for name, value in options.items():
        lines.append(f"    .option({_literal(name)}, {_literal(_hide_option(name, value))})")
    if not {"ctiFrequency", "advanceTime", "ctiHeader"} & options.keys():
        lines += [f"    # {line}" for line in _DELAY_COMMENT]
        lines.append('    # .option("ctiFrequency", "1 second").option("ctiDelay", "5 minutes")')
    if columns:
        texts = [*(f"{column}, " for column in columns[:-1]), columns[-1]]
        lines += ["    .schema(", *(f"        {_literal(text)}" for text in texts), "    )"]
    return "\n".join([*lines, "    .load()", ")"])


def _literal(text: str) -> str:
    """Format a text as a Python literal, the same as in JSON; letters are not escaped."""
    return json.dumps(text, ensure_ascii=False)


_SHOWN_BYTES: Final = 8
_NOT_SHOWN: Final = "(not shown)"


def format_report(report: TopicReport, width: int) -> str:
    """Format a report: facts, rows, candidates for the event time, and the query to paste."""
    sections = [_format_head(report)]
    if len(report.sample):
        rows = [report.rows.column_names, *_format_rows(report)]
        sections.append(align_within(rows, width))
        sections.append(["Candidates for the event time, the best one first:"])
        sections[-1] += align_within(_format_candidates(report), width)
    if report.notes:
        sections.append([f"Note: {note}." for note in report.notes])
    return f"{join_sections(sections)}\n\n{format_snippet(report.options, report.columns)}"


def to_json(report: TopicReport) -> str:
    """Format the report as one JSON object."""
    sample = report.sample
    fields = {
        "topic": sample.topic,
        "partitions": sample.partitions,
        "offsets": sample.offsets,
        "records": len(sample),
        "timestamps": _find_timestamps(report),
        "payloads": {
            detection.side: _describe_detection(report, detection)
            for detection in report.detections
        },
        "columns": list(report.columns),
        "hidden_fields": report.secrets,
        "rows": [
            dict(zip(report.rows.column_names, cells, strict=True))
            for cells in _format_rows(report)
        ],
        "malformed": dict(report.malformed),
        "candidates": [_list_candidate(candidate) for candidate in report.candidates],
        "options": {name: _hide_option(name, text) for name, text in report.options.items()},
        "notes": list(report.notes),
    }
    return json.dumps(fields, indent=2)


def _format_head(report: TopicReport) -> list[str]:
    sample = report.sample
    count = len(sample)
    head = (
        f"Topic '{sample.topic}': {format_count(sample.partitions, 'partition')}, "
        f"{format_count(sample.offsets, 'offset')}"
    )
    if not count:
        return [head, "It holds no records: nothing can be said of them."]
    lines = [f"{head}; below the newest {format_count(count, 'record')}"]
    stamps = _find_timestamps(report)
    if stamps:
        lines.append(f"Their timestamps: {stamps[0]} to {stamps[1]}")
    for detection in report.detections:
        lines.append(f"{detection.side.title()}s: {_format_detection(detection)}")
        if detection.side in report.reader_schemas:
            lines.append(f"  read by {_format_reader(report.reader_schemas[detection.side])}")
    for reason, rows in report.malformed.items():
        lines.append(f"Malformed {reason}, in {rows} of {count} records")
    if report.secrets:
        lines.append(
            f"{format_count(report.secrets, 'field')} with names that suggest secrets: not shown, "
            "and not in the schema"
        )
    return lines


def _find_timestamps(report: TopicReport) -> tuple[str, str] | None:
    timestamps = [candidate for candidate in report.candidates if candidate.kind == "record"]
    return (
        (format_instant(timestamps[0].first_us), format_instant(timestamps[0].last_us))
        if timestamps
        else None
    )


def _format_detection(detection: Detection) -> str:
    if not detection.present:
        return "all null"
    framing = {
        "confluent": ", each behind the id of its schema",
        "header": ", with the id of its schema in a header",
        "none": "",
    }[detection.framing]
    ids = ", ".join(map(format_schema_id, detection.schema_ids))
    key_list = f" ({ids})" if ids and detection.framing != "none" else ""
    return f"{detection.format}{framing}{key_list}; {detection.fitting} of {detection.present} fit"


def _format_reader(reader: ReaderSchema) -> str:
    message = f", message {reader.message}" if reader.message else ""
    if reader.schema_id is None:
        return f"the schema of the options{message}"
    return f"schema {reader.schema_id}, version {reader.version} of '{reader.subject}'{message}"


def _describe_detection(report: TopicReport, detection: Detection) -> dict[str, Any]:
    reader = report.reader_schemas.get(detection.side)
    return {
        "format": detection.format,
        "framing": detection.framing,
        "present": detection.present,
        "fitting": detection.fitting,
        "schema_ids": list(map(format_schema_id, detection.schema_ids))
        if detection.framing != "none"
        else [],
        "reader": None if reader is None else reader.to_json(),
    }


# -- rows ------------------------------------------------------------------------------------------


def _format_rows(report: TopicReport) -> Iterator[list[str]]:
    for row in report.rows.to_pylist():
        yield [format_without_secrets(value) for value in row.values()]


def format_without_secrets(value: Any) -> str:
    """Format a value; hide what may be a secret, and show only the beginning of other bytes."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case datetime():
            zone = "Z" if value.tzinfo else ""
            return value.replace(tzinfo=None).isoformat() + zone
        case date():
            return value.isoformat()
        case bytes():
            return _format_bytes(value)
        case str():
            return _NOT_SHOWN if _hides_secret(value) else value
        case dict():
            return _format_fields(value.items())
        case list() if value and all(isinstance(pair, tuple) for pair in value):
            return _format_fields(value)
        case list():
            return f"[{', '.join(map(format_without_secrets, value))}]"
        case _:
            return str(value)


def _format_fields(items: Any) -> str:
    """Format the fields of a struct or the entries of a map; hide those that may be secrets."""
    fields = (
        f"{name}: {_NOT_SHOWN if suggests_secret(str(name)) else format_without_secrets(value)}"
        for name, value in items
    )
    return "{" + ", ".join(fields) + "}"


def _format_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return _NOT_SHOWN if suggests_secret(text) or _hides_secret(text) else text
    more = "..." if len(value) > _SHOWN_BYTES else ""
    return f"{format_count(len(value), 'byte')}: {value[:_SHOWN_BYTES].hex(' ')}{more}"


# -- candidates ------------------------------------------------------------------------------------


def _format_candidates(report: TopicReport) -> list[list[str]]:
    rows = [["startTime", "is", "timeUnit", "records", "against the record's", "from", "to"]]
    for candidate in report.candidates:
        times = [format_instant(candidate.first_us), format_instant(candidate.last_us)]
        readable = f"{candidate.readable} of {len(report.sample)}"
        lag = "" if candidate.kind == "record" else format_lag(candidate)
        rows.append([candidate.source, candidate.kind, candidate.unit, readable, lag, *times])
    return rows


def format_lag(candidate: Candidate) -> str:
    """Say how far a candidate is behind its records' timestamps, or ahead of them."""
    least, most = candidate.least_lag_us, candidate.most_lag_us
    if least is None or most is None:
        return "nothing to compare with"
    if least < 0 < most:
        return f"{shorten_duration(-least)} ahead to {shorten_duration(most)} behind"
    if least == most == 0:
        return "equal"
    near, far = sorted((abs(least), abs(most)))
    word = "behind" if most > 0 else "ahead"
    return (
        f"{shorten_duration(far)} {word}"
        if near == far
        else f"{shorten_duration(near)} to {shorten_duration(far)} {word}"
    )


def _list_candidate(candidate: Candidate) -> Mapping[str, Any]:
    return {
        "startTime": candidate.source,
        "kind": candidate.kind,
        "timeUnit": candidate.unit or None,
        "readable": candidate.readable,
        "from": format_instant(candidate.first_us),
        "to": format_instant(candidate.last_us),
        "least_lag_us": candidate.least_lag_us,
        "most_lag_us": candidate.most_lag_us,
    }


# -- the command ----------------------------------------------------------------------------------

_RECORDS: Final = 10

_ARGUMENTS: Final = {
    "subscribe": "--topic",
    "kafka.bootstrap.servers": "--bootstrap-servers",
    "schemaRegistry.url": "--schema-registry",
    "startTime": "--start-time",
    "ctiFrequency": "--cti-frequency",
}
"""Options with an argument of their own, where the command has it."""

_SUBSCRIBING: Final = ("subscribe", "subscribePattern", "assign")

_DECLARED: Final = {name.lower(): name for name in SPECS}
_READING: Final = ("kafkaConsumer.", "subscribe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that `read_arguments` reads."""
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
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""

    def report() -> str:
        raw = read_arguments(arguments)
        # Refuse bad options now: the error of a broker that does not answer would hide them.
        check_given(SPECS.values(), raw)
        read_registry_settings({name.lower(): text for name, text in raw.items()})
        sample = _read_sample(read_kafka_options(select_reading(raw)), arguments.topic, _RECORDS)
        examined = examine(sample, raw)
        return to_json(examined) if arguments.json else format_report(examined, terminal_width())

    return run_command(report)


def run_command(report: Callable[[], str]) -> int:
    """Print a report, or the error that stops it; return the exit code."""
    # The client's log would repeat what the error says at its end.
    logging.getLogger("pyspark_timestream").addHandler(logging.NullHandler())
    try:
        text = report()
    except (CommandError, OptionError, TimestreamError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(text)
    return 0


def terminal_width() -> int:
    """Return the width of the terminal in characters."""
    return shutil.get_terminal_size((120, 24)).columns


def read_arguments(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options that the arguments stand for, by their declared names."""
    raw = {"transport": "kafka"}
    for name, argument in _ARGUMENTS.items():
        text = getattr(arguments, argument.removeprefix("--").replace("-", "_"), None)
        if text is not None:
            raw[name] = text
    for name, value in _split_options(arguments.option):
        if name in raw or name in _SUBSCRIBING:
            instead = _ARGUMENTS.get(name, "--topic")
            raise CommandError(
                f"--option {name} is not needed here: leave it out, or use {instead}"
            )
        raw[name] = value
    return raw


def _split_options(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            # Do not show it: it may be a secret that lacks its name.
            raise CommandError("an --option is not of the form NAME=VALUE; accepted: name=value")
        lower = name.strip().lower()
        prefix = "schemaregistry."
        if lower.startswith(prefix):
            yield f"schemaRegistry.{lower.removeprefix(prefix)}", value
        else:
            yield _DECLARED.get(lower, lower), value


def select_reading(raw: dict[str, str]) -> dict[str, str]:
    """Select the options that say how to fetch records, and names that no option has."""
    others = [name for name in _DECLARED.values() if not name.startswith(_READING)]
    return {
        name: text
        for name, text in raw.items()
        if name not in others and not name.startswith("schemaRegistry.")
    }


def _hides_secret(text: str) -> bool:
    """Return whether a text has JSON with a field that its name makes a likely secret."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        pending = [json.loads(text)]
    except (ValueError, RecursionError):
        return suggests_secret(text)
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if any(suggests_secret(name) for name in value):
                return True
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False
