"""Positions: where reading starts and ends (semantics 9.2), and what is gone since (5.6, 9.1).

As in Spark's own source `startingTimestamp` overrides `startingOffsetsByTimestamp`, which overrides
`startingOffsets`; the ending options likewise. Without a record at or after its starting timestamp
a partition fails the query or starts at the latest offset (`startingOffsetsByTimestampStrategy`).
Without a record at or after its ending timestamp it ends at the latest offset.

A stream may so have ends of its own, before those of its logs (7.6): the ending options fix them
when the query first starts, and the offset keeps them as `fixed_ends`. With `endingCti` a partition
ends where its clock says so (7.7). A partition that has ended needs nothing more of its log: it can
neither be lost nor lag behind.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Set
from typing import Final

from pyspark_timestream.core.instants import format_instant, parse_instant
from pyspark_timestream.errors import LOSS_ADVICE, DataLost, OptionError
from pyspark_timestream.kafka.offsets.offset import PartitionOffset, StreamOffset
from pyspark_timestream.kafka.offsets.stream_state import StreamState
from pyspark_timestream.kafka.options.options import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST, LATEST
from pyspark_timestream.kafka.ranges import Partition
from pyspark_timestream.rules.state import PartitionState
from pyspark_timestream.rules.stream_cti import compute_stream_cti

LEADER_CHANGE_GRACE_S: Final = 5.0
"""How long a partition must be missing, or its log shorter, before that is believed."""

_MAX_HIDDEN_US: Final = 7 * 86_400_000_000
"""How long a missing partition may return: as long as Kafka keeps a group's offsets."""


def recreated_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id has changed: they have the same name but other records."""
    return frozenset(topic for topic, each in now.items() if before.get(topic, each) != each)


def unchanged_topics(before: Mapping[str, str], now: Mapping[str, str]) -> frozenset[str]:
    """Return the topics whose id is known to be the same as before."""
    return frozenset(topic for topic, each in now.items() if before.get(topic) == each)


def reconcile(
    wanted: Mapping[Partition, int],
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    *,
    fail_on_data_loss: bool,
    recreated: Set[str] = frozenset(),
    unchanged: Set[str] = frozenset(),
) -> tuple[dict[Partition, int], list[str]]:
    """Find the positions to continue at, given what the broker still has.

    Args:
        wanted: the next offset to read of each partition.
        earliest: the first offset of each that still exists.
        ends: the end offset of each; missing partitions are left out.
        fail_on_data_loss: a loss is an error.
        recreated: the topics that were deleted and created again.
        unchanged: the topics that are certainly those read before.

    Returns:
        The positions of the partitions that still exist, and a text for each loss.

    Raises:
        DataLost: something was lost and `fail_on_data_loss`.
    """
    positions, losses = dict(wanted), []
    for part, position in sorted(wanted.items()):
        if part not in ends:
            losses.append(f"{part} is gone; it was read up to offset {position}")
            del positions[part]
        elif part.topic in recreated:
            losses.append(
                f"{part} was read up to offset {position}, but its topic has been deleted and "
                "created again since"
            )
            positions[part] = earliest.get(part, 0)
        elif ends[part] < position and part.topic in unchanged:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the end of "
                "its log is lost, as after an unclean leader election; what was written since then "
                f"below offset {ends[part]} is not read"
            )
            positions[part] = ends[part]
        elif ends[part] < position:
            losses.append(
                f"{part} ends at offset {ends[part]}, but was read up to {position}: the topic "
                "was truncated or created again"
            )
            positions[part] = earliest.get(part, 0)
        elif earliest.get(part, position) > position:
            losses.append(
                f"{part} begins at offset {earliest[part]}: offsets {position} to "
                f"{earliest[part] - 1} were deleted before they were read"
            )
            positions[part] = earliest[part]
    if losses and fail_on_data_loss:
        raise DataLost(f"{'; '.join(losses)}. {LOSS_ADVICE}")
    return positions, losses


def hide_missing(
    state: StreamState, topic_ids: Mapping[str, str]
) -> dict[Partition, PartitionOffset]:
    """Keep missing partitions whose topic id can prove that they are the same when they return.

    `topic_ids` are the ids that the topics have now, as far as they are known.
    """
    previous, existing, now_us = state.previous, state.snapshot.positions, state.snapshot.now_us
    gone = {
        part: dataclasses.replace(
            last,
            start_inclusive=last.end_exclusive,
            state=state.clocks[part],
            idle=False,
            quiet_since_us=now_us,
        )
        for part, last in previous.partitions.items()
        if part not in existing and part in state.clocks
    }
    return {
        part: last
        for part, last in {**previous.hidden, **gone}.items()
        if part not in existing
        and previous.topic_ids.get(part.topic, "") == topic_ids.get(part.topic)
        and now_us - (last.quiet_since_us or 0) < _MAX_HIDDEN_US
    }


_OUR_DAYS_US: Final = parse_instant("1990-01-01T00:00:00Z"), parse_instant("2100-01-01T00:00:00Z")


def starting_timestamps(
    options: KafkaOptions,
    partitions: Collection[Partition],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """Return the timestamp, in ms, at which each partition starts; empty if offsets decide.

    Args:
        options: the starting options.
        partitions: the partitions to resolve.
        listed: all partitions of the read; None for `partitions`.

    Raises:
        OptionError: no partition exists, or `startingOffsetsByTimestamp` names others than exist.
    """
    listed = partitions if listed is None else listed
    _check_exist(options, listed)
    one_ms, each_ms = options.starting_timestamp_ms, options.starting_timestamps_ms
    return _choose_timestamps("startingOffsetsByTimestamp", one_ms, each_ms, partitions, listed)


def resolve_starts(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    found: Mapping[Partition, int | None],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """Return the first offset to read of each partition in `ends`.

    Args:
        options: the starting options.
        earliest: the first offset that each partition still has.
        ends: the offset after each partition's last readable record.
        found: the first offset at or after each of `starting_timestamps`; None if there is none.
        listed: all partitions of the read; None for those in `ends`.

    Raises:
        OptionError: no partition exists, `startingOffsets` names others than exist, or a timestamp
            has no record at or after it (and strategy `error`).
        DataLost: a named offset does not exist, and option `failOnDataLoss` is true.
    """
    listed = ends if listed is None else listed
    instants = starting_timestamps(options, ends, listed)
    if instants:
        return {part: _resolve_timestamp(options, part, instants[part], found.get(part), ends[part])
                for part in ends}  # fmt: skip
    wanted = options.starting_offsets
    if isinstance(wanted, int):
        return dict(earliest if wanted == EARLIEST else ends)
    _check_same_partitions("startingOffsets", wanted, listed)
    words = {EARLIEST: earliest, LATEST: ends}
    named = {part: wanted[part] for part in ends}
    starts = {part: words[at][part] if at in words else at for part, at in named.items()}
    return {
        part: _clamp_offset("startingOffsets", options, part, at, earliest, ends)
        for part, at in starts.items()
    }


def ending_timestamps(
    options: KafkaOptions,
    partitions: Collection[Partition],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """Return the timestamp, in ms, at which each partition ends; empty if offsets decide.

    Args:
        options: the ending options.
        partitions: the partitions to resolve.
        listed: all partitions of the read; None for `partitions`.

    Raises:
        OptionError: `endingOffsetsByTimestamp` names other partitions than exist.
    """
    listed = partitions if listed is None else listed
    one_ms, each_ms = options.ending_timestamp_ms, options.ending_timestamps_ms
    return _choose_timestamps("endingOffsetsByTimestamp", one_ms, each_ms, partitions, listed)


def resolve_ends(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    found: Mapping[Partition, int | None],
    listed: Collection[Partition] | None = None,
) -> dict[Partition, int]:
    """Return the offset after the last one to read of each partition in `ends`.

    Args:
        options: the ending options.
        earliest: the first offset that each partition still has.
        ends: the offset after each partition's last readable record.
        found: the first offset at or after each of `ending_timestamps`; None if there is none.
        listed: all partitions of the read; None for those in `ends`.

    Raises:
        OptionError: an option names other partitions than exist.
        DataLost: a named offset does not exist, and option `failOnDataLoss` is true.
    """
    listed = ends if listed is None else listed
    if ending_timestamps(options, ends, listed):
        at_or_after = {part: found.get(part) for part in ends}
        return {part: ends[part] if at is None else at for part, at in at_or_after.items()}
    wanted = options.ending_offsets
    if isinstance(wanted, int):
        return dict(ends)
    _check_same_partitions("endingOffsets", wanted, listed)
    named = {part: wanted[part] for part in ends}
    stops = {part: ends[part] if at == LATEST else at for part, at in named.items()}
    return {
        part: _clamp_offset("endingOffsets", options, part, at, earliest, ends)
        for part, at in stops.items()
    }


def check_order(
    options: KafkaOptions, starts: Mapping[Partition, int], stops: Mapping[Partition, int]
) -> None:
    """Refuse a read that starts after its end, naming the option that decides it.

    Raises:
        OptionError: of that option.
    """
    starting = _find_first_set(
        startingTimestamp=options.starting_timestamp_ms,
        startingOffsetsByTimestamp=options.starting_timestamps_ms,
        startingOffsets=options.starting_offsets,
    )
    ending = _find_first_set(
        endingTimestamp=options.ending_timestamp_ms,
        endingOffsetsByTimestamp=options.ending_timestamps_ms,
        endingOffsets=options.ending_offsets,
    )
    for part, start in sorted(starts.items()):
        if start > stops[part]:
            raise OptionError(
                starting,
                f"{part} starts at offset {start} by it, and ends at {stops[part]} by option "
                f"'{ending}'",
                "a start that is not behind the end",
                f"choose an earlier one, or a later '{ending}'",
            )


def fix_ends(
    options: KafkaOptions,
    earliest: Mapping[Partition, int],
    starts: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    find_offsets: Callable[[Mapping[Partition, int]], Mapping[Partition, int | None]],
) -> dict[Partition, int] | None:
    """Return where a stream ends by the ending options; None if it has none of them.

    Args:
        options: the options of the stream.
        earliest: the first offset that each partition still has.
        starts: the first offset that the stream reads of each partition.
        ends: the offset after each partition's last readable record.
        find_offsets: finds the first offset at or after a timestamp, in ms; None if there is none.

    Raises:
        OptionError: an option names other partitions than exist, or one starts after its end.
        DataLost: a named offset does not exist, and option `failOnDataLoss` is true.
    """
    if options.ends_by_default:
        return None
    found = find_offsets(ending_timestamps(options, ends))
    stops = resolve_ends(options, earliest, ends, found)
    check_order(options, starts, stops)
    return stops


def has_reached(cti_us: int | None, until_us: int | None) -> bool:
    """Check whether a CTI has reached the instant at which the stream ends; None for no end."""
    return cti_us is not None and until_us is not None and cti_us >= until_us


def has_stream_ended(offset: StreamOffset, until_us: int | None) -> bool:
    """Check whether the stream's CTI has reached `endingCti`, `until_us`, at the start of `offset`.

    A final CTI that came before that, at the end of a bounded run, does not count.
    """
    if until_us is None:
        return False
    awake_us = [each.state.cti_us for each in offset.partitions.values() if not each.idle]
    idle_us = [each.state.cti_us for each in offset.partitions.values() if each.idle]
    floor_us = None if offset.final else offset.cti_us
    return has_reached(compute_stream_cti(awake_us, (), idle_us, floor_us), until_us)


def find_ended(
    offset: StreamOffset, states: Mapping[Partition, PartitionState], until_us: int | None
) -> dict[Partition, int]:
    """Return the partitions that the stream has read to their own ends, with their positions.

    Once the stream has ended by `endingCti`, so have its idle partitions, whatever their clocks.

    Args:
        offset: the last batch.
        states: the clocks after it; those at its start for partitions that are left out.
        until_us: the CTI at which each partition ends; None for no such end.
    """
    fixed, is_over = offset.fixed_ends or {}, has_stream_ended(offset, until_us)
    return {
        part: share.end_exclusive
        for part, share in offset.partitions.items()
        if is_over
        or (part in fixed and share.end_exclusive >= fixed[part])
        or has_reached(states.get(part, share.state).cti_us, until_us)
    }


def limit_ends(
    log_ends: Mapping[Partition, int],
    fixed_ends: Mapping[Partition, int] | None,
    ended: Mapping[Partition, int],
) -> dict[Partition, int]:
    """Return how far the stream reads each partition.

    Args:
        log_ends: the ends of the logs.
        fixed_ends: those of the stream, if it has any: it reads no other partition.
        ended: the partitions that have ended, with their positions.
    """
    if fixed_ends is None:
        return {**log_ends, **ended}
    limited = {part: min(end, fixed_ends[part]) for part, end in log_ends.items()
               if part in fixed_ends}  # fmt: skip
    return {**limited, **ended}


def _choose_timestamps(
    name: str,
    one_ms: int | None,
    each_ms: Mapping[Partition, int] | None,
    partitions: Collection[Partition],
    listed: Collection[Partition],
) -> dict[Partition, int]:
    """Return each partition's timestamp: `one_ms` for all, else its own by option `name`."""
    if one_ms is not None:
        return dict.fromkeys(partitions, one_ms)
    if each_ms is None:
        return {}
    _check_same_partitions(name, each_ms, listed)
    return {part: each_ms[part] for part in partitions}


def _check_same_partitions(
    name: str, wanted: Collection[Partition], partitions: Collection[Partition]
) -> None:
    """Refuse an option that names `wanted` if the read has other partitions.

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
        f"it names {_name_partitions(wanted)}, but the partitions are "
        f"{_name_partitions(partitions)}",
        f"exactly the partitions that are read{words.get(name, '')}",
        "name each of them once",
    )


def _clamp_offset(
    name: str,
    options: KafkaOptions,
    part: Partition,
    at: int,
    earliest: Mapping[Partition, int],
    ends: Mapping[Partition, int],
) -> int:
    """Return the offset `at` of option `name`, or the nearest one that exists.

    Raises:
        DataLost: it does not exist, and option `failOnDataLoss` is true.
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


def _resolve_timestamp(
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
        "a timestamp that each partition has a record at or after, in milliseconds",
        f"{_correct_unit(instant_ms)}choose an earlier one, or set option "
        "'startingOffsetsByTimestampStrategy' to 'latest' to start such partitions at their end",
    )


def name_other_unit(ms: int) -> str:
    """Name the unit in which a number is a time of our days; empty if that is milliseconds.

    >>> name_other_unit(1_700_000_000), name_other_unit(1_700_000_000_000), name_other_unit(0)
    ('seconds, of 2023-11-14', '', '')
    """
    first_us, end_us = _OUR_DAYS_US
    if first_us <= ms * 1_000 < end_us:
        return ""
    for unit, us in (
        ("seconds", ms * 1_000_000),
        ("microseconds", ms),
        ("nanoseconds", ms // 1_000),
    ):
        if first_us <= us < end_us:
            return f"{unit}, of {format_instant(us)[:10]}"
    return ""


def _correct_unit(ms: int) -> str:
    found = name_other_unit(ms)
    return f"write milliseconds, if that is in {found}; or " if found else ""


def _check_exist(options: KafkaOptions, partitions: Collection[Partition]) -> None:
    if options.assign is not None and set(options.assign) != set(partitions):
        missing = _name_partitions([part for part in options.assign if part not in partitions])
        raise OptionError(
            "assign", f"{missing} do not exist", "existing partitions", "create or leave them out"
        )
    topics = {part.topic for part in partitions}
    for topic in options.subscribe or ():
        if topic not in topics:
            raise OptionError(
                "subscribe", f"topic '{topic}' does not exist", "existing topics", "create it"
            )


def _name_partitions(partitions: Collection[Partition]) -> str:
    return ", ".join(f"{part.topic}-{part.number}" for part in sorted(partitions)) or "none"


def _find_first_set(**options: object) -> str:
    return next(name for name, value in options.items() if value is not None)
