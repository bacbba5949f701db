"""Where a new query starts: the starting options against what the broker has (semantics 9.2).

As in Spark's own source `startingTimestamp` goes before `startingOffsetsByTimestamp`, which goes
before `startingOffsets`. A partition without a record at or after its timestamp fails the query, or
starts at the latest offset, as `startingOffsetsByTimestampStrategy` says.
"""

from collections.abc import Collection, Mapping

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.ranges import Partition

__all__ = ["check_named", "existing_offset", "start_instants", "starting_positions"]


def start_instants(
    options: KafkaOptions,
    partitions: Collection[Partition],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """The timestamp, in milliseconds, at which each partition starts; empty: offsets decide.

    Args:
        options: the starting options.
        partitions: whose start is asked for.
        listed: all partitions that are read; None: `partitions`.

    Raises:
        OptionError: no partition exists, or `startingOffsetsByTimestamp` names others than exist.
    """
    listed = partitions if listed is None else listed
    _check_exist(options, listed)
    if options.starting_timestamp_ms is not None:
        return dict.fromkeys(partitions, options.starting_timestamp_ms)
    if options.starting_timestamps_ms is None:
        return {}
    check_named("startingOffsetsByTimestamp", options.starting_timestamps_ms, listed)
    return {part: options.starting_timestamps_ms[part] for part in partitions}


def starting_positions(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    found: Mapping[Partition, int | None],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """The first offset to read of each partition in `ends`.

    Args:
        options: the starting options.
        earliest: the first offset that each partition still has.
        ends: the offset after each partition's last readable record.
        found: the first offset at or after each of `start_instants`; None: there is none.
        listed: all partitions that are read; None: those in `ends`.

    Raises:
        OptionError: no partition exists, `startingOffsets` names others than exist, or a timestamp
            has no record at or after it (and strategy `error`).
        DataLost: a named offset is not there (and option `failOnDataLoss`).
    """
    listed = ends if listed is None else listed
    instants = start_instants(options, ends, listed)
    if instants:
        return {part: _at_timestamp(options, part, instants[part], found.get(part), ends[part])
                for part in ends}  # fmt: skip
    wanted = options.starting_offsets
    if isinstance(wanted, int):
        return dict(earliest if wanted == EARLIEST else ends)
    check_named("startingOffsets", wanted, listed)
    words = {EARLIEST: earliest, LATEST: ends}
    named = {part: wanted[part] for part in ends}
    starts = {part: words[at][part] if at in words else at for part, at in named.items()}
    return {
        part: existing_offset("startingOffsets", options, part, at, earliest, ends)
        for part, at in starts.items()
    }


def check_named(
    name: str, wanted: Collection[Partition], partitions: Collection[Partition]
) -> None:
    """Refuse an option that names `wanted` if the partitions that are read are others.

    Raises:
        OptionError: of option `name`.
    """
    if set(wanted) == set(partitions):
        return
    words = {
        "startingOffsets": "; -2 is earliest, -1 is latest",
        "endingOffsets": "; -1 is latest",
    }
    raise OptionError(
        name,
        f"it names {_names(wanted)}, but the partitions are {_names(partitions)}",
        f"exactly the partitions that are read{words.get(name, '')}",
        "name each of them once",
    )


def existing_offset(
    name: str,
    options: KafkaOptions,
    part: Partition,
    at: int,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> int:
    """The offset `at` that option `name` gives, or the nearest that exists.

    Raises:
        DataLost: it does not exist (and option `failOnDataLoss`).
    """
    if earliest[part] <= at <= ends[part]:
        return at
    if options.fail_on_data_loss:
        raise DataLost(
            f"option '{name}': {part} has offsets "
            f"{earliest[part]} to {ends[part]}, not {at}; name one of them"
            f"{', -2 or -1' if name == 'startingOffsets' else ' or -1'}, or set "
            "option 'failOnDataLoss' to 'false' to "
            f"{'start' if name == 'startingOffsets' else 'end'} at the nearest"
        )
    return min(max(at, earliest[part]), ends[part])


def _at_timestamp(
    options: KafkaOptions, part: Partition, instant_ms: int, found: int | None, end: int
) -> int:
    if found is not None:
        return found
    if options.starting_strategy == "latest":
        return end
    both = ("startingTimestamp", "startingOffsetsByTimestamp")
    raise OptionError(
        both[0] if options.starting_timestamp_ms is not None else both[1],
        f"{part} has no record at or after timestamp {instant_ms}",
        "a timestamp that each partition has a record at or after",
        "choose an earlier one, or set option 'startingOffsetsByTimestampStrategy' to 'latest' to "
        "start such partitions at their end",
    )


def _check_exist(options: KafkaOptions, partitions: Collection[Partition]) -> None:
    if options.assign is not None and set(options.assign) != set(partitions):
        missing = _names([part for part in options.assign if part not in partitions])
        raise OptionError(
            "assign", f"{missing} do not exist", "existing partitions", "create or leave them out"
        )
    topics = {part.topic for part in partitions}
    for topic in options.subscribe or ():
        if topic not in topics:
            raise OptionError(
                "subscribe", f"topic '{topic}' does not exist", "existing topics", "create it"
            )


def _names(partitions: Collection[Partition]) -> str:
    return ", ".join(f"{part.topic}-{part.number}" for part in sorted(partitions)) or "none"
