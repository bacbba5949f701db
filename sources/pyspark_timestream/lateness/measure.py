"""The function `measure_lateness`, and the options that it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.read_modes import adapt_to_batch
from pyspark_timestream.kafka.registry.schema_files import load_schemas
from pyspark_timestream.lateness.findings import Findings, build_table
from pyspark_timestream.lateness.ladder import LADDER_US, parse_delays, parse_last

__all__ = ["find_lateness", "measure_lateness"]

_REFUSED: Final = {
    "ctidelay": ("ctiDelay", "the delays are what is tried here", "name some as 'delays'"),
    "advancetime": (
        "advanceTime",
        "a preset fixes the delay",
        "set 'ctiFrequency' to '1', which is what each preset stands for",
    ),
    "ctiimport": (
        "ctiImport",
        "when a CTI of another topic takes effect depends on when a query reads it",
        "leave it out",
    ),
    "idletimeout": (
        "idleTimeout",
        "it depends on the wall clock of a query",
        "leave it out",
    ),
    "timesettings": (
        "timeSettings",
        "a description may hold the delay, which is what is tried here",
        "set what else it holds as options",
    ),
}
"""Options that decide CTIs but cannot be followed here: name, why, next step."""

_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")


def measure_lateness(
    options: Mapping[str, str],
    delays: str | Sequence[str] | None = None,
    last: str | None = None,
) -> pa.Table:
    """Count the rows of a topic that would be late by each of several delays, in one pass.

    Late rows are exactly those of a query that starts at the same records with `ctiDelay` set to
    the delay (semantics 3.1), since the same rules judge them. The records are read from Kafka to
    the end that their partitions have now; Spark is not needed.

    How long results wait is measured by the records' timestamps. An event that is not late waits
    from its own record to the one right after which its partition's CTI is greater than its time;
    its wait is the difference of the two timestamps, or 0 if that is negative. A stream of several
    partitions may wait longer: its CTI is the least of theirs (semantics 5.1).

    Args:
        options: those of the stream, by their names, such as `kafka.bootstrap.servers`,
            `subscribe`, `startTime` and `ctiFrequency`; `startingOffsets` and other options of
            batch reads choose the records, by default all. `ctiDelay`, `advanceTime`, `ctiImport`,
            `idleTimeout` and `timeSettings` are refused, and `violationPolicy` changes nothing.
        delays: durations, separated by commas or as a list, none of them negative; 0 is always
            among them. None: a ladder from 0 to 1 day.
        last: read only what lies at most this long, inclusive, before the newest record by the
            timestamps of the records. None: everything.

    Returns:
        One row for each delay, in increasing order. `events` and `malformed` (without a readable
        time) are the same in all rows. `late` and `late_percent` are exact, and `most_late` is how
        far the CTI was past a late event, at most. `wait_median` and `wait_p95` are at most 0.8 %
        too high; `waiting` events were passed by no CTI by the end. Waits are of one in
        `sampled_every` records: of each record up to a million. `partitions` has the counts of
        each partition: `topic`, `partition`, `events`, `malformed`, `late`, `ctis`. Durations are
        in microseconds.

    Raises:
        OptionError: an option is wrong or missing, the topic does not exist or holds no records,
            or none of its events has a readable time.
        BrokerUnreachable: no broker answers, or it refuses.
        DataLost: records were deleted while they were read.
        SchemaRefused: a schema does not fit.
        SchemaRegistryError: the registry does not give a schema.
        MissingExtra: a library for the format is not installed.
    """
    return build_table(find_lateness(options, delays, last))


def find_lateness(
    raw: Mapping[str, str], delays: str | Sequence[str] | None, last: str | None
) -> Findings:
    """Return what `measure_lateness` makes a table of."""
    # As Spark takes options: a number stands for its text.
    texts = delays.split(",") if isinstance(delays, str) else delays and [*map(str, delays)]
    delays_us = LADDER_US if texts is None else parse_delays(texts)
    last_us = None if last is None else parse_last(str(last))
    options = _read_options(raw, last)
    # Imported late: the rest of this module needs no Kafka client.
    from pyspark_timestream.kafka.registry.readers import fix_readers
    from pyspark_timestream.lateness.read import read_topic

    return read_topic(fix_readers(load_schemas(options), {}), delays_us, last_us)


def _read_options(raw: Mapping[str, str], last: str | None) -> KafkaOptions:
    given = {name.lower(): str(text) for name, text in raw.items()}
    for key, (name, problem, next_step) in _REFUSED.items():
        if key in given:
            raise OptionError(name, f"it has no place here: {problem}", "its absence", next_step)
    for name in _STARTS:
        if last is not None and name.lower() in given:
            raise OptionError(
                name, f"it conflicts with 'last' ('{last}')", "one of both", "leave one out"
            )
    options = adapt_to_batch(read_kafka_options({**given, "transport": "kafka"}), given.keys())
    if options.frequency is None:
        raise OptionError(
            "ctiFrequency",
            "it is missing, and a delay belongs to generated CTIs",
            "a count of events such as '10', or a timespan such as '5 seconds'",
            "set it, to '1' for a CTI at every event",
        )
    return replace(options, final_cti=False)
