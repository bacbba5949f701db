"""The driver's warnings: looks for mistakes after each batch, and says each of them once."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from pyspark_timestream.cti.step import PartitionState, step
from pyspark_timestream.explain.diagnosis import worth_a_warning
from pyspark_timestream.explain.history import Moment
from pyspark_timestream.explain.mistakes import start_at_end
from pyspark_timestream.explain.recent_counts import Recent, counted_on, recent_mistakes
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.payload import read_payload
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock
from pyspark_timestream.kafka.decode.value_samples import (
    describe_malformed,
    describe_unit,
    describe_values,
)
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.plan.findings import IN_RUN_THAT_COMES_BACK, Finding, Kind
from pyspark_timestream.kafka.plan.offset import PartitionOffset, StreamOffset, group_name
from pyspark_timestream.kafka.plan.warnings import Warnings, new_warnings, warned
from pyspark_timestream.kafka.ranges import Partition, Range

if TYPE_CHECKING:
    from pyspark_timestream.kafka.client.range_reader import RangeReader

__all__ = ["Warner", "say_new", "say_of_read"]

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_SAMPLE: Final = 100
"""So many of a partition's newest records are looked at for an example."""

_PATIENCE_MS: Final = 5_000
_AGAIN_US: Final = 1_000_000
"""While a stream stands still, only time can add to what is found."""


Description = Callable[[KafkaOptions, Projection | None, RecordBlock], str]
"""Says what a block of records shows; empty: nothing."""


class Warner:
    """Keeps the warnings of one run up to date.

    Args:
        options: what the query asks for.
        projection: the columns that it wants; None: not known.
        reader: makes what reads a few records, for their example.
    """

    def __init__(
        self,
        options: KafkaOptions,
        projection: Projection | None,
        reader: "Callable[[KafkaOptions, str], RangeReader]",
    ) -> None:
        self._options, self._projection, self._reader = options, projection, reader
        self._details: dict[Kind, str] = {}
        self._sampled: list[Finding] | None = None
        self._recent = Recent()
        self._looked: tuple[tuple[str, int], int, Warnings] | None = None

    def begin(
        self, earliest: Mapping[Partition, int], starts: Mapping[Partition, int], bounded: bool
    ) -> Warnings:
        """The warnings of a new query that reads on from `starts`, of logs from `earliest` on."""
        passed_over = sum(at - earliest.get(part, at) for part, at in starts.items())
        if not bounded or not self._options.starts_by_default or not passed_over:
            return {}
        return warned({}, [start_at_end(passed_over)])

    def look(
        self,
        previous: StreamOffset,
        now: StreamOffset,
        log_ends: Mapping[Partition, int],
        now_us: int,
        found_before: Iterable[Finding] = (),
    ) -> Warnings:
        """The warnings of the stream that stands at `now`, after the batch `previous`.

        Args:
            previous: the last batch, with the warnings up to it.
            now: where the stream stands.
            log_ends: how far there are records to read.
            now_us: the wall clock.
            found_before: what was found about the batch `previous` itself.
        """
        batch = previous.stream, previous.number
        if self._looked is not None:
            looked_at, looked_us, warnings = self._looked
            if looked_at == batch and now_us - looked_us < _AGAIN_US:
                return warnings
        found = worth_a_warning((Moment(now_us, now, log_ends),), now_us)
        found += [*self._lately(previous, now), *_still_at_end(previous)]
        found += [*self._uncounted(previous, now), *found_before]
        wanted = [
            self._advised(each, now)
            for each in found
            if each.kind is not Kind.IDLE_PARTITION or self._waits(now)
        ]
        warnings = warned(previous.warnings, wanted, lambda each: self._detail(each, now))
        self._looked = batch, now_us, warnings
        return warnings

    def _lately(self, previous: StreamOffset, now: StreamOffset) -> list[Finding]:
        """What the last events show; until a new run has had some, what was said before."""
        self._recent = counted_on(self._recent, previous.partitions, now.partitions)
        if self._recent.counts:
            return recent_mistakes(self._recent, now)
        given = (previous.warnings.get(kind) for kind in (Kind.MALFORMED, Kind.WRONG_TYPE))
        return [each.finding for each in given if each is not None and each.holds]

    def _uncounted(self, previous: StreamOffset, now: StreamOffset) -> list[Finding]:
        """What a few records show of a partition that was read and not counted; asked once a run.

        Nobody counts where several tasks read a partition, or where a group is forbidden and no
        clock needs what would have been left there.
        """
        if self._sampled is None:
            read = [span.partition for span in previous.ranges() if span.size]
            parts = [part for part in read if _stands_still(part, previous, now)]
            if not parts:
                return []
            nothing: list[Finding] = []
            self._sampled = self._safely(self._sample, parts[0], now, nothing)
        return self._sampled

    def _sample(self, part: Partition, now: StreamOffset) -> list[Finding]:
        state, unfit = PartitionState(), 0
        for block in self._newest_records(part, now):
            payload = read_payload(self._options, self._projection, block)
            state, _ = step(self._options.rules, state, payload.events, payload.marks)
            unfit += 0 if payload.json is None else int(np.count_nonzero(payload.json.malformed))
        position = now.partitions[part].start_inclusive
        share = PartitionOffset(position, position, state, unfit=unfit)
        alone = replace(now, partitions={part: share})
        found = worth_a_warning((Moment(0, alone),), 0)
        return [replace(each, text=f"of its newest records, {each.text}") for each in found]

    def _waits(self, now: StreamOffset) -> bool:
        """Whether results wait for a quiet partition for longer than the options say."""
        if now.bounded:
            return not self._options.final_cti
        return self._options.idle_timeout_us is None

    def _advised(self, finding: Finding, now: StreamOffset) -> Finding:
        """`finding` with the fix that follows from options which no offset has."""
        comes_back = now.bounded and self._options.idle_timeout_us is not None
        if finding.kind is Kind.IDLE_PARTITION and comes_back:
            return replace(finding, advice=IN_RUN_THAT_COMES_BACK)
        return finding

    def _detail(self, finding: Finding, now: StreamOffset) -> str:
        """What the newest records of a partition say about `finding`, as far as they can be had."""
        describe = _DESCRIBED.get(finding.kind)
        if describe is None or not finding.partitions:
            return ""
        if finding.kind not in self._details:
            look = partial(self._described, describe)
            self._details[finding.kind] = self._safely(look, min(finding.partitions), now, "")
        return self._details[finding.kind]

    def _described(self, describe: Description, part: Partition, now: StreamOffset) -> str:
        blocks = self._newest_records(part, now)
        found = (describe(self._options, self._projection, block) for block in blocks)
        return next(filter(None, found), "")

    def _safely(
        self,
        look: Callable[[Partition, StreamOffset], T],
        part: Partition,
        now: StreamOffset,
        no: T,
    ) -> T:
        """What `look` sees in records, which may be of any kind: no reason for a query to fail."""
        try:
            return look(part, now)
        except Exception:
            _LOG.debug("%s: nothing can be said of its records", part, exc_info=True)
            return no

    def _newest_records(self, part: Partition, now: StreamOffset) -> list[RecordBlock]:
        position = now.partitions[part].start_inclusive
        span = Range(part, max(position - _SAMPLE, 0), position)
        patience_ms = min(self._options.poll_timeout_ms, _PATIENCE_MS)
        options = replace(self._options, poll_timeout_ms=patience_ms, fail_on_data_loss=True)
        reader = self._reader(options, group_name(options.group_prefix, now.stream))
        try:
            return list(reader.read(span, Needs(timestamps=True, values=True, headers=True)))
        finally:
            reader.close()


def _malformed(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    return describe_malformed(options, block)


def _unit(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    return describe_unit(options, block)


def _values(_: KafkaOptions, projection: Projection | None, block: RecordBlock) -> str:
    return "" if projection is None else describe_values(projection, block)


_DESCRIBED: Final[Mapping[Kind, Description]] = {
    Kind.MALFORMED: _malformed,
    Kind.IMPROBABLE_TIMES: _unit,
    Kind.WRONG_TYPE: _values,
}


def _stands_still(part: Partition, previous: StreamOffset, now: StreamOffset) -> bool:
    after = now.partitions.get(part)
    return after is not None and after.state.events == previous.partitions[part].state.events


def _still_at_end(previous: StreamOffset) -> list[Finding]:
    """The finding that the stream began at its end, as long as it has read nothing."""
    given = previous.warnings.get(Kind.START_AT_END)
    if given is None or not given.holds or any(span.size for span in previous.ranges()):
        return []
    return [given.finding]


def say_of_read(
    options: KafkaOptions,
    projection: Projection,
    reader: "Callable[[KafkaOptions, str], RangeReader]",
    ended: Mapping[Partition, tuple[int, PartitionState, int]],
) -> None:
    """Log what is wrong with what a task of a batch read has read: nobody else will look at it.

    Args:
        options: what the read asks for.
        projection: the columns that it wants.
        reader: makes what reads a few records, for their example.
        ended: partition -> where the reading ended, the clock there, and how many values were no
            JSON of the schema.
    """
    shares = {
        part: PartitionOffset(at, at, state, unfit=n) for part, (at, state, n) in ended.items()
    }
    blank = StreamOffset("", options.settings(), 1, {})
    now = replace(blank, partitions=shares)
    say_new({}, Warner(options, projection, reader).look(blank, now, {}, 0))


def say_new(before: Warnings, after: Warnings) -> None:
    """Log the warnings that an offset has and the one before had not."""
    for finding in new_warnings(before, after):
        _LOG.warning("%s", finding.line)
