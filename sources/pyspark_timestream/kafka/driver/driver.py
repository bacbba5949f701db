"""The driver's side of a Kafka stream: what the broker says, folded into offsets."""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pyspark_timestream.connector.offsets import check_offset, is_sentinel
from pyspark_timestream.cti.step import PartitionState
from pyspark_timestream.errors import DataLost
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.driver.cti_importer import Importer, imported_options
from pyspark_timestream.kafka.driver.end_states import EndStates, find_end_states, start_states
from pyspark_timestream.kafka.driver.idle_tracker import Watch
from pyspark_timestream.kafka.driver.partition_cache import Listing
from pyspark_timestream.kafka.driver.warner import Warner, say_new
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.plan.imported_ctis import Imported
from pyspark_timestream.kafka.plan.joined_batches import join_batches
from pyspark_timestream.kafka.plan.losses import made_anew, proven_same, reconcile
from pyspark_timestream.kafka.plan.next_offset import (
    Circumstances,
    Sight,
    emitted_cti,
    first_offset,
    imports_news,
    next_offset,
    standing,
)
from pyspark_timestream.kafka.plan.offset import (
    OFFSET_VERSION,
    StreamOffset,
    group_name,
)
from pyspark_timestream.kafka.plan.positions import start_instants, starting_positions
from pyspark_timestream.kafka.plan.progress import progress
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.kafka.task import Share, TaskPlan, end_state

__all__ = ["StreamDriver"]

_LOG: Final = logging.getLogger(__name__)

_GONE_S: Final = 5.0
"""For how long a partition must be missing, or its log shorter, to count as that."""


def steady_clock() -> Callable[[], int]:
    """The wall clock in us as it was at this call, and from then on without its jumps."""
    ahead_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    return lambda: ahead_us + time.monotonic_ns() // 1_000


class StreamDriver:
    """The driver's side of one run: asks the broker, and folds offsets.

    Args:
        options: what the query asks for.
        connect: makes the broker of options and a group.
        now_us: the wall clock; the default does not follow its jumps.
        reader: makes what reads ranges in the driver.
        projection: the columns that the query wants, for warnings about their types.
    """

    def __init__(
        self,
        options: KafkaOptions,
        connect: Callable[[KafkaOptions, str], Broker] = Broker,
        now_us: Callable[[], int] | None = None,
        reader: Callable[[KafkaOptions, str], RangeReader] = RangeReader,
        projection: Projection | None = None,
    ) -> None:
        self._options = options
        self._reader = reader
        self._importer: Importer | None = None
        self._now_us = now_us or steady_clock()
        self._watch = Watch(options.idle_timeout_us)
        self._topic_ids: dict[str, str] = {}
        self._ids_asked_at = float("-inf")
        self._make = connect
        self._connected: Broker | None = None
        self._bounds: dict[Partition, int] | None = None
        self._bound_written: dict[Partition, int] = {}
        self._listing = Listing(lambda: self._broker.partitions())
        self._started = False
        self._noted = -1
        self._filled_us: int | None = None
        self._ended: tuple[StreamOffset, EndStates] | None = None
        self._planned: StreamOffset | None = None
        self._log_ends: dict[Partition, int] = {}
        self._warner = Warner(options, projection, reader)

    def bound(self) -> None:
        """Make this a bounded run that ends at the current ends."""
        # Nothing is asked with a group here, so any name does until the stream has one.
        self._connect(self._options.group_prefix)
        # Imported CTIs are bounded before the ends that they wait for.
        importer = self._import_side()
        if importer is not None:
            importer.bound()
            self._bound_written = self._broker.written_ends(self._listing.known(fresh=True))
        self._bounds = dict(self._ends(fresh=True))
        self._watch = Watch(self._options.idle_timeout_us, across_runs=True)

    def plan(self, start: Mapping[str, Any], cap: int | None) -> dict[str, Any]:
        """The next batch's offset as JSON; `start` where there is nothing to do."""
        check_offset(start, self._options.settings(), OFFSET_VERSION)
        run = Circumstances(
            max_offsets=cap,
            min_offsets=self._least(),
            max_tasks=self._options.max_tasks,
            bounded=self._bounds is not None,
            new_start=not self._started,
            final_cti=self._options.final_cti,
            idle_timeout_us=self._options.idle_timeout_us,
            noted=self._noted,
        )
        if is_sentinel(start):
            planned = self._first(run)
            say_new({}, planned.warnings)
        else:
            previous = StreamOffset.from_json(start)
            planned = self._next(previous, run)
            say_new(previous.warnings, planned.warnings)
            self._watch.planned(planned is not previous, self._now_us())
            if planned is previous:
                self._planned = planned
                return dict(start)
            # A checkpoint from before a setting was kept keeps it from here on.
            planned = replace(planned, settings=self._options.settings())
        if run.new_start or any(span.size for span in planned.ranges()):
            self._filled_us = self._now_us()
        self._started, self._planned = True, planned
        return planned.to_json()

    def _least(self) -> int | None:
        """How many new offsets a batch waits for; None where it need not, or has waited enough."""
        if self._bounds is not None or self._filled_us is None:
            return None
        is_due = self._now_us() - self._filled_us >= self._options.max_delay_us
        return None if is_due else self._options.min_offsets

    def join(self, start: Mapping[str, Any], end: StreamOffset) -> list[TaskPlan]:
        """The tasks of all batches after `start` up to `end`, whose own records were not noted.

        Raises:
            CheckpointMismatch: they were planned by a release that did not remember enough.
        """
        self._connect(group_name(self._options.group_prefix, end.stream))
        if is_sentinel(start):
            return join_batches(None, {}, end, None)
        previous = StreamOffset.from_json(start)
        states = self._end_states(previous).states
        return join_batches(previous, states, end, emitted_cti(previous, states))

    def note_done(self, end: Mapping[str, Any]) -> None:
        """Note that no restart goes back before the batch `end`."""
        if not is_sentinel(end):
            self._noted = max(self._noted, end["number"])

    def progress(self) -> dict[str, Any] | None:
        """What to report of the batch planned last."""
        return progress(self._planned, self._log_ends) if self._planned else None

    def _first(self, run: Circumstances) -> StreamOffset:
        stream = uuid.uuid4().hex
        self._connect(group_name(self._options.group_prefix, stream))
        imported = self._imported(None)
        written = self._written() if imported else {}
        ends = self._ends(fresh=self._bounds is None)
        earliest = self._broker.earliest(ends)
        found = self._broker.offsets_at(start_instants(self._options, ends))
        starts = starting_positions(self._options, earliest, ends, found)
        sight = Sight(
            topic_ids=self._ids(ends, fresh=True),
            imported=imported,
            warnings=self._warner.begin(earliest, starts, run.bounded),
            written=written,
        )
        return first_offset(stream, self._options.settings(), starts, ends, run, sight)

    def _next(self, previous: StreamOffset, run: Circumstances) -> StreamOffset:
        self._connect(group_name(self._options.group_prefix, previous.stream))
        # A CTI waits for the ends as they are after it was read.
        imported = self._imported(previous)
        written = self._written() if imports_news(previous, imported) else {}
        wanted = {part: share.end_exclusive for part, share in previous.partitions.items()}
        ends = self._ends_of_at_least(wanted)
        found = [part for part in ends if part not in wanted]
        quiet = not found and not run.new_start and ends == wanted
        topic_ids = self._ids(self._log_ends, fresh=not quiet)
        anew = made_anew(previous.topic_ids, topic_ids)
        back = {
            part: previous.hidden[part].end_exclusive
            for part in found
            if part in previous.hidden and part.topic not in anew
        }
        for part, position in back.items():
            _LOG.warning("%s is there again; going on at offset %d", part, position)
        same = proven_same(previous.topic_ids, topic_ids)
        wanted |= back
        earliest = wanted if quiet and not anew else self._broker.earliest(self._log_ends)
        fail = self._options.fail_on_data_loss
        positions, losses = reconcile(wanted, earliest, self._log_ends, fail, anew, same)
        for loss in losses:
            _LOG.warning("%s; going on, as option 'failOnDataLoss' is 'false'", loss)
        positions.update(
            {part: earliest[part] for part in found if part in earliest and part not in back}
        )
        if imported is not None and found:
            written |= self._broker.written_ends(found)
        run = replace(run, lost=bool(losses or back))
        if run.new_start:
            self._watch.resume(previous.partitions)
        idle = {part for part, share in previous.partitions.items() if share.idle}
        now_us = self._now_us()
        sight = Sight(
            now_us=now_us,
            since_us=self._watch.look(self._broker, positions, self._log_ends, idle, now_us),
            settled=self._bounds is None and self._watch.settled(now_us),
            topic_ids=topic_ids,
            imported=imported,
            written=written,
        )
        ended = self._end_states(previous)
        sight = replace(sight, unfit=ended.unfit)
        now = standing(previous, ended.states, positions, run, sight)
        warnings = self._warner.look(previous, now, ends, now_us, ended.findings)
        sight = replace(sight, warnings=warnings)
        return next_offset(previous, ended.states, positions, ends, run, sight)

    def _import_side(self) -> Importer | None:
        options = imported_options(self._options)
        if options is not None and self._importer is None:
            # No group is used: where the topic was read to is in the offset.
            group = options.group_prefix
            reader = self._reader(options, group)
            self._importer = Importer(options, self._make(options, group), reader.read)
        return self._importer

    def _imported(self, previous: StreamOffset | None) -> Imported | None:
        """What the imported topic has said by now; nobody asks once the stream or run has ended."""
        importer = self._import_side()
        recorded = None if previous is None else previous.imported
        closed = self._started and self._bounds is not None
        if importer is None or (previous and (previous.final or (closed and previous.closing))):
            return recorded
        topic_ids = {} if previous is None else previous.topic_ids
        return importer.look(recorded, topic_ids, self._now_us())

    def _written(self) -> dict[Partition, int]:
        """How far the logs go, what open transactions have written included.

        It must be asked for after the imported topic was read, and before the stable ends are: what
        lies below it has then been read once those are.
        """
        if self._bounds is not None:
            return dict(self._bound_written)
        return self._broker.written_ends(self._listing.known())

    def _ids(self, partitions: Iterable[Partition], fresh: bool) -> dict[str, str]:
        """The ids of the topics, asked for when something has changed or partitions were listed."""
        if fresh or self._ids_asked_at != self._listing.asked_at:
            topics = {part.topic for part in partitions}
            self._topic_ids = self._broker.topic_ids(topics)
            self._ids_asked_at = self._listing.asked_at
        imported = self._importer.topic_ids if self._importer else {}
        return {**imported, **self._topic_ids}

    def _ends_of_at_least(self, wanted: Mapping[Partition, int]) -> dict[Partition, int]:
        """How far each partition may be read, when all of `wanted` is there, or stays away.

        Metadata may lack a partition for a moment, and a broker that no longer leads a partition
        may tell where its log ended. What is taken for lost, and then found again, would be read
        from its beginning.
        """
        ends = self._ends()
        deadline = time.monotonic() + _GONE_S
        while not self._has_all(wanted) and time.monotonic() < deadline:
            time.sleep(_GONE_S / 10)
            ends = self._ends(fresh=True)
        return ends

    def _has_all(self, wanted: Mapping[Partition, int]) -> bool:
        """Whether every partition of `wanted` goes on at its offset, or after it."""
        return all(self._log_ends.get(part, -1) >= offset for part, offset in wanted.items())

    def _connect(self, group: str) -> None:
        if self._connected is None or self._connected.group != group:
            self._connected = self._make(self._options, group)

    @property
    def _broker(self) -> Broker:
        if self._connected is None:
            raise AssertionError("the broker was asked before it was connected")
        return self._connected

    def _ends(self, fresh: bool = False) -> dict[Partition, int]:
        """How far each partition may be read now."""
        self._log_ends = self._broker.ends(self._listing.known(fresh))
        if self._bounds is None:
            return self._log_ends
        # A topic that was truncated since the run began has less than was bounded.
        return {
            part: min(bound, self._log_ends.get(part, bound))
            for part, bound in self._bounds.items()
        }

    def _end_states(self, offset: StreamOffset) -> EndStates:
        """Where every clock stands after the batch `offset`."""
        if self._ended is None or self._ended[0] != offset:
            self._ended = (offset, self._find_end_states(offset))
        return self._ended[1]

    def _find_end_states(self, offset: StreamOffset) -> EndStates:
        if self._options.is_cut:
            # No task sees all of a partition, and without CTIs a state holds nothing but counts.
            return start_states(offset)
        left = self._broker.left_metadata([s.partition for s in offset.ranges() if s.size])
        read_again = partial(self._read_again, offset) if self._options.is_ordered else None
        own = group_name(self._options.group_prefix, offset.stream)
        return find_end_states(offset, left, read_again, self._options.client.get("group.id", own))

    def _read_again(self, offset: StreamOffset, span: Range) -> PartitionState:
        """The state after `span`, where no task has left it: by reading the range again."""
        state = offset.partitions[span.partition].state
        _LOG.info("reading %s again: no task has left its state in the group", span)
        reader = self._reader(self._options, group_name(self._options.group_prefix, offset.stream))
        try:
            return end_state(self._options, Share(span, state), reader.read)
        except DataLost as error:
            raise DataLost(
                f"the clock of {span.partition} "
                f"after offset {span.end_exclusive - 1} was left nowhere, and reading it again "
                f"failed: {error}"
            ) from error
        finally:
            reader.close()
