"""Where a new query starts: option `startingOffsets` against what the broker has."""

from collections.abc import Mapping

from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka_options import KafkaOptions
from pyspark_timestream.kafka_values import EARLIEST, LATEST
from pyspark_timestream.option_fields import OptionError
from pyspark_timestream.ranges import Partition

__all__ = ["starting_positions"]


def starting_positions(
    options: KafkaOptions, earliest: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[Partition, int]:
    """The first offset to read of each partition in `ends`.

    Raises:
        OptionError: no partition exists, or `startingOffsets` names others than exist.
        DataLost: a named offset is not there (and option `failOnDataLoss`).
    """
    wanted = options.starting_offsets
    _check_exist(options, ends)
    if isinstance(wanted, int):
        return dict(earliest if wanted == EARLIEST else ends)
    if set(wanted) != set(ends):
        raise OptionError(
            "startingOffsets",
            f"it names {_names(wanted)}, but the partitions are {_names(ends)}",
            "exactly the partitions that are read; -2 is earliest, -1 is latest",
            "name each of them once",
        )
    words = {EARLIEST: earliest, LATEST: ends}
    starts = {part: words[at][part] if at in words else at for part, at in wanted.items()}
    return {part: _existing(options, part, at, earliest, ends) for part, at in starts.items()}


def _check_exist(options: KafkaOptions, ends: Mapping[Partition, int]) -> None:
    if options.assign is not None and set(options.assign) != set(ends):
        missing = _names([part for part in options.assign if part not in ends])
        raise OptionError(
            "assign", f"{missing} do not exist", "existing partitions", "create or leave them out"
        )
    topics = {part.topic for part in ends}
    for topic in options.subscribe or ():
        if topic not in topics:
            raise OptionError(
                "subscribe", f"topic '{topic}' does not exist", "existing topics", "create it"
            )


def _existing(
    options: KafkaOptions,
    part: Partition,
    at: int,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> int:
    if earliest[part] <= at <= ends[part]:
        return at
    if options.fail_on_data_loss:
        raise DataLost(
            f"option 'startingOffsets': {part} has offsets "
            f"{earliest[part]} to {ends[part]}, not {at}; name one of them, -2 or -1, or set "
            "option 'failOnDataLoss' to 'false' to start at the nearest"
        )
    return min(max(at, earliest[part]), ends[part])


def _names(partitions: Mapping[Partition, int] | list[Partition]) -> str:
    return ", ".join(f"{part.topic}-{part.number}" for part in sorted(partitions)) or "none"
