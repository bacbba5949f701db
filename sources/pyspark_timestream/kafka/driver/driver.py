"""The driver's side of a Kafka stream: turns the broker's answers into offsets (semantics 8).

For each batch the driver reads imported CTIs, asks the broker for partitions and ends, handles
losses, updates idle partitions, finds the clocks after the last batch (`end_states`), updates the
warnings, and then calls the pure `plan_next_offset`. The offset holds everything that a restart
needs; the fields of `StreamDriver` are caches (`trackers`) and the state of the current run.

There are six kinds of ends, each an offset per partition:

- `readable_ends`: the end of what can be read of the log now (5.3), without the run's limits.
- `high_watermarks`: the end of the log with open transactions; new imported CTIs wait for it (6.2).
- `fixed_ends`: the end of the stream, by its ending options (7.6); None without them.
- `ends`: the end of what this run may read: `readable_ends` within its bounds and `fixed_ends`.
- `last_positions`: the end of the last batch; it is `open_positions` and `ended` together.
- `ended`: the end of partitions that have reached `fixed_ends` or `endingCti`; none is read again.
"""

import logging
import uuid
from collections.abc import Callable, Container, Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from pyspark_timestream.core.checkpoint import damaged_offset, is_initial_offset
from pyspark_timestream.core.instants import SECOND_US, format_duration, format_instant
from pyspark_timestream.core.processes import EndRequests, find_directory
from pyspark_timestream.errors import CheckpointMismatch, name_topics
from pyspark_timestream.kafka.client.broker import Broker
from pyspark_timestream.kafka.client.range_reader import RangeReader
from pyspark_timestream.kafka.decode.records import Projection
from pyspark_timestream.kafka.diagnosis.diagnoses import recall_warnings
from pyspark_timestream.kafka.diagnosis.history import build_progress
from pyspark_timestream.kafka.diagnosis.warner import Warner, log_new_warnings
from pyspark_timestream.kafka.driver.cti_importer import (
    CtiImporter,
    change_import,
    derive_import_options,
)
from pyspark_timestream.kafka.driver.end_states import LastEndStates
from pyspark_timestream.kafka.driver.trackers import (
    IdleTracker,
    PartitionCache,
    RunEnds,
    TopicIds,
    make_steady_clock,
)
from pyspark_timestream.kafka.offsets.changes import (
    NewRules,
    compare_settings,
    describe_settings,
    find_change,
)
from pyspark_timestream.kafka.offsets.group_metadata import group_name
from pyspark_timestream.kafka.offsets.next_offset import (
    carry_over,
    plan_first_offset,
    plan_next_offset,
)
from pyspark_timestream.kafka.offsets.offset import (
    ImportedTopic,
    StreamOffset,
    check_stream_offset,
    read_recorded_offset,
)
from pyspark_timestream.kafka.offsets.positions import (
    find_ended,
    find_recreated_topics,
    find_unchanged_topics,
    limit_ends,
    make_start_bound,
    pin_ends,
    reconcile,
    report_losses,
)
from pyspark_timestream.kafka.offsets.stream_state import (
    BrokerSnapshot,
    RunContext,
    StreamState,
    compute_alignment,
    find_emitted_cti,
    has_new_import,
)
from pyspark_timestream.kafka.offsets.tasks import join_batches
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.ranges import OffsetRange, Partition, TaskPlan
from pyspark_timestream.kafka.reader_schemas import pin_checked_reader_schemas
from pyspark_timestream.kafka.schemas import ReaderSchema
from pyspark_timestream.kafka.task import RangeEnd
from pyspark_timestream.rules.clocks import has_reached

_LOG: Final = logging.getLogger(__name__)

_NO_WORK_AFTER_US: Final = SECOND_US
"""After this time without work one more offset records the final positions."""


class _WaitingChange:
    """A change of pinned options that waits until the CTI has reached `changeFrom` (8.10).

    Attributes:
        settings: the new values of all pinned options.
        waits: True while the values of the last batch hold.
    """

    def __init__(self, options: KafkaOptions) -> None:
        self.settings = options.settings()
        # With `now` nothing waits.
        self._from_us = options.change_from if isinstance(options.change_from, int) else None
        self.waits = False

    def begin(self, previous: StreamOffset) -> bool:
        """Return whether the change waits, at the start of a run after the batch `previous`.

        Raises:
            CheckpointMismatch: the CTI had reached `changeFrom` by that batch.
        """
        if self._from_us is None or previous.settings == self.settings:
            return False
        if has_reached(previous.cti_us, self._from_us):
            assert previous.cti_us is not None
            raise CheckpointMismatch(
                f"option 'changeFrom' is '{format_instant(self._from_us)}', and the stream's CTI "
                f"was already {format_instant(previous.cti_us)} when its last batch was planned "
                f"without the change of {self._compare(previous)}: give a later "
                "instant, or 'now', or set the old values back"
            )
        self.waits = True
        return True

    def is_due(self, cti_us: int | None) -> bool:
        """Return whether the change waits no longer if the stream's CTI is `cti_us`."""
        return self.waits and has_reached(cti_us, self._from_us)

    def describe(self, planned: StreamOffset) -> dict[str, str]:
        """Return what the offset `planned` notes of the change; empty if it does not wait."""
        if not self.waits or self._from_us is None:
            return {}
        return {"changeFrom": f"{format_instant(self._from_us)}: {self._compare(planned)}"}

    def _compare(self, offset: StreamOffset) -> str:
        return describe_settings(*compare_settings(offset.settings, self.settings))


class _WorkTimes:
    """When the run last read records, and since when it has had nothing to do."""

    def __init__(self) -> None:
        self.filled_us: int | None = None
        """The clock at the last batch with records, or at the first batch of the run."""
        self._no_work_since_us: int | None = None

    def note(self, now_us: int, planned: StreamOffset, *, is_batch: bool) -> None:
        """Note the plan of this moment: a new batch, or the last one again."""
        if not is_batch:
            if self._no_work_since_us is None:
                self._no_work_since_us = now_us
            return
        self._no_work_since_us = None
        if self.filled_us is None or planned.has_records:
            self.filled_us = now_us

    def has_had_no_work(self, now_us: int) -> bool:
        """Return whether there has been nothing to do for about a second."""
        since_us = self._no_work_since_us
        return since_us is not None and now_us - since_us >= _NO_WORK_AFTER_US


class StreamDriver:
    """The driver's side of one run of a query.

    Args:
        options: the query's options.
        create_broker: creates the broker for options and a group.
        now_us: the wall clock; the default does not follow its jumps.
        create_reader: creates a range reader of the driver's own.
        projection: the requested columns, for checks of schemas and warnings about types.
    """

    def __init__(
        self,
        options: KafkaOptions,
        create_broker: Callable[[KafkaOptions, str], Broker] = Broker,
        now_us: Callable[[], int] | None = None,
        create_reader: Callable[[KafkaOptions, str], RangeReader] = RangeReader,
        projection: Projection | None = None,
    ) -> None:
        self._options = options
        self._change = _WaitingChange(options)
        self._create_reader = create_reader
        self._importer: CtiImporter | None = None
        self._now_us = now_us or make_steady_clock()
        self._idle_tracker = IdleTracker(options.idle_timeout_us)
        self._work = _WorkTimes()
        self._create_broker = create_broker
        self._connected_broker: Broker | None = None
        self._partition_cache = PartitionCache(lambda: self._broker.partitions())
        self._topic_ids = TopicIds(lambda: self._broker, self._partition_cache)
        self._ends = RunEnds(lambda: self._broker, self._partition_cache)
        self._has_end_request = False
        self._committed_batch = -1
        self._end_states = LastEndStates(
            lambda: self._broker, create_reader, self._topic_ids.require
        )
        self.planned: StreamOffset | None = None
        """The offset that `plan` returned last."""
        self._first_planned: int | None = None  # The number of this run's first batch.
        self._requests = EndRequests(find_directory())
        self._projection = projection
        self._are_schemas_pinned = False
        self._warner = Warner(options, projection, create_reader)
        self._commit_thread = ThreadPoolExecutor(1, "timestream-commit")
        self._committing: Future[object] | None = None

    def limit_to_current_ends(self, read_ends: Mapping[Partition, int] | None = None) -> None:
        """Make this a bounded run up to the current ends, or up to `read_ends` if higher."""
        if self._connected_broker is None:
            # No request here uses the group, so any name will do until the stream has its own.
            self._connect(None)
        # Bound the import first: its CTIs wait for ends that must be later.
        importer = self._get_importer()
        if importer is not None:
            importer.limit_to_current_ends()
        self._ends.limit_to_current_ends(read_ends or {}, has_import=importer is not None)
        if not self._has_started:
            # A run that goes on keeps the times of its idle partitions.
            self._idle_tracker = IdleTracker(self._options.idle_timeout_us, across_runs=True)

    def pin_schemas(self, recorded: Mapping[str, ReaderSchema]) -> Mapping[str, ReaderSchema]:
        """Pin the readers' schemas, once per run, and return them for `value` and `key`.

        Raises:
            SchemaRegistryError, SchemaRefused, CheckpointMismatch: as `pin_checked_reader_schemas`.
        """
        if not self._are_schemas_pinned and self._options.has_schemas:
            self._options = pin_checked_reader_schemas(self._options, self._projection, recorded)
            self._warner = Warner(self._options, self._projection, self._create_reader)
            self._are_schemas_pinned = True
        return self._options.reader_schemas

    # -- the next batch ---------------------------------------------------------------------------

    def plan(self, start: Mapping[str, Any], cap: int | None) -> dict[str, Any]:
        """Plan the next batch; return its offset as JSON, or `start` if there is nothing to do."""
        self._wait_for_commit()
        previous = self._read_start(start)
        self.pin_schemas({} if previous is None else previous.schemas)
        if previous is not None and not self._has_started and self._change.begin(previous):
            # Until the CTI reaches `changeFrom`, the stream goes on by its earlier options.
            self._use_settings(previous.settings)
        self._limit_to_own_ends(previous)
        self._follow_end_request(previous)
        run = self._make_run_context(cap, previous)
        if previous is None:
            planned = self._plan_first(run)
        else:
            planned = self._plan_next(previous, run)
            if planned is not previous and self._change.is_due(planned.cti_us):
                # Spark never gets the plan that was made with the old options.
                self._change.waits = False
                self._use_settings(self._change.settings)
                run = self._make_run_context(cap, previous)
                planned = self._plan_next(previous, run)
        log_new_warnings(() if previous is None else previous.warnings, planned.warnings)
        self._work.note(self._now_us(), planned, is_batch=planned is not previous)
        if planned is previous:
            self.planned = planned
            return dict(start)
        if run.change is not None:
            _LOG.warning("from batch %d on %s", planned.number, planned.changes[-1].describe())
        unpinned = _list_unpinned(self._options, planned.stream) | self._change.describe(planned)
        self.planned = replace(planned, schemas=self._options.reader_schemas, unpinned=unpinned)
        if self._first_planned is None:
            self._first_planned = planned.number
        return self.planned.to_json()

    @property
    def _has_started(self) -> bool:
        """Whether the run has planned a batch."""
        return self._first_planned is not None

    def _read_start(self, start: Mapping[str, Any]) -> StreamOffset | None:
        """Check and read the offset of the last batch; None before the first batch of a query."""
        check_stream_offset(
            start,
            self._change.settings,
            self._options.topic_settings,
            change_from=self._options.change_from,
        )
        return None if is_initial_offset(start) else self.read_offset(start)

    def _use_settings(self, settings: Mapping[str, str]) -> None:
        """Use these values of the pinned options, for the imported topic too."""
        self._options = self._options.as_of(settings)
        import_options = derive_import_options(self._options)
        if self._importer is not None and import_options is not None:
            self._importer.change(import_options)

    def _limit_to_own_ends(self, previous: StreamOffset | None) -> None:
        """Make this a bounded run if the stream has ends of its own (semantics 7.6)."""
        if self._options.ends_by_default or self._ends.is_bounded:
            return
        self.limit_to_current_ends()
        if previous is not None:
            # A broker that no longer leads a partition may just have returned an old end; the
            # fixed ends are certain.
            self._ends.limit(previous.fixed_ends or {})

    def _follow_end_request(self, previous: StreamOffset | None) -> None:
        """Make this a bounded run with a final CTI if `end_stream` asks for one (11.12)."""
        if previous is None or self._has_end_request:
            return
        if not self._requests.take(previous.stream, is_running=self._has_started):
            return
        if not self._ends.is_bounded:
            # A bounded run stops at its own ends; this one now stops at the logs' ends.
            open_at = _leave_out(previous.ends, self._find_ended(previous))
            ends = self._ends.wait_for(open_at)
            if not self._ends.reaches(open_at):
                # The next batch handles the loss first; the request stays.
                return
            self.limit_to_current_ends(ends)
        self._has_end_request = True

    def _make_run_context(self, cap: int | None, previous: StreamOffset | None) -> RunContext:
        """Make the limits of the next batch, with the change that `changeFrom` allows."""
        options = self._options
        change = None
        if previous is not None:
            # A change that waits is not one of this batch.
            settings = previous.settings if self._change.waits else self._change.settings
            unpinned = _list_unpinned(options, previous.stream)
            change = find_change(
                options,
                settings,
                unpinned,
                last_settings=previous.settings,
                last_unpinned=previous.unpinned,
            )
        return RunContext(
            options,
            max_offsets=cap,
            min_offsets=options.min_offsets if self._waits_for_records() else None,
            bounded=self._ends.is_bounded,
            new_start=not self._has_started,
            final_cti=options.final_cti or (self._has_end_request and options.has_ctis),
            committed_batch=self._committed_batch,
            change=change,
        )

    def _waits_for_records(self) -> bool:
        """Return whether the batch waits for `minOffsetsPerTrigger` (until `maxTriggerDelay`)."""
        filled_us = self._work.filled_us
        if self._ends.is_bounded or filled_us is None:
            # A bounded run gets no more records; without a batch there is no time to count from.
            return False
        return self._now_us() - filled_us < self._options.max_delay_us

    def _plan_first(self, run: RunContext) -> StreamOffset:
        stream = uuid.uuid4().hex
        self._connect(stream)
        imported = self._read_imported(None)
        high_watermarks = self._ends.get_high_watermarks() if imported else {}
        earliest, ends = self._ends.wait_for_first_ranges()
        starts = make_start_bound(self._options).resolve(earliest, ends, self._broker.offsets_at)
        fixed_ends = pin_ends(self._options, earliest, starts, ends, self._broker.offsets_at)
        high_watermarks = self._add_lacking_ends(high_watermarks, starts.keys() if imported else ())
        snapshot = BrokerSnapshot(
            positions=starts,
            ends=ends if fixed_ends is None else fixed_ends,
            topic_ids={**self._imported_ids, **self._topic_ids.get(ends, fresh=True)},
            imported=imported,
            high_watermarks=limit_ends(high_watermarks, fixed_ends, {}),
        )
        warnings = self._warner.warn_at_start(earliest, starts, bounded=run.bounded)
        planned = plan_first_offset(stream, self._options.settings(), snapshot, run, warnings)
        return replace(planned, fixed_ends=fixed_ends)

    def _plan_next(self, previous: StreamOffset, run: RunContext) -> StreamOffset:
        self._connect(previous.stream)
        # Read the import before asking for the ends: a CTI waits for ends later than its reading.
        imported = self._read_imported(previous, run.change)
        has_new_ctis = has_new_import(previous, imported)
        high_watermarks = self._ends.get_high_watermarks() if has_new_ctis else {}
        snapshot = self._examine_logs(previous, run)
        if imported is not None:
            # A new CTI waits for the ends of all logs, a known one only for new partitions' ends.
            new = snapshot.positions.keys() - previous.partitions.keys()
            waiting = snapshot.positions.keys() if has_new_ctis else new
            high_watermarks = self._add_lacking_ends(high_watermarks, waiting)
            if snapshot.lost:
                # What waits on a log that is another one now waits for its end.
                high_watermarks |= self._broker.high_watermarks(snapshot.positions)
            if has_new_ctis and not waiting <= high_watermarks.keys():
                # While a partition's leader changes, its end is unknown: leave the new CTIs to a
                # later batch.
                imported = previous.imported
        now_us = self._now_us()
        if run.new_start:
            self._idle_tracker.resume(previous.partitions)
        caught_up_since_us = self._idle_tracker.update(
            self._broker, snapshot.positions, self._ends.readable_ends, previous.idle, now_us
        )
        end_states = self._end_states.find(self._options, previous)
        snapshot = replace(
            snapshot,
            now_us=now_us,
            caught_up_since_us=caught_up_since_us,
            nothing_to_do=not run.bounded and self._work.has_had_no_work(now_us),
            imported=imported,
            high_watermarks=limit_ends(high_watermarks, previous.fixed_ends, {}),
            malformed_payloads=end_states.malformed_payloads,
        )
        state = StreamState(previous, end_states.clocks, snapshot, run)
        warnings = self._warner.update(
            previous, carry_over(state), snapshot.ends, now_us, end_states.diagnoses
        )
        return plan_next_offset(state, warnings, self._ask_time_index(state))

    # -- what the next batch depends on -----------------------------------------------------------

    def _get_importer(self) -> CtiImporter | None:
        options = derive_import_options(self._options)
        if options is not None and self._importer is None:
            # The group is not used: the offset holds the positions in the topic.
            group = options.group_prefix
            reader = self._create_reader(options, group)
            self._importer = CtiImporter(options, self._create_broker(options, group), reader.read)
        return self._importer

    @property
    def _imported_ids(self) -> Mapping[str, str]:
        return self._importer.topic_ids if self._importer else {}

    def _read_imported(
        self, previous: StreamOffset | None, change: NewRules | None = None
    ) -> ImportedTopic | None:
        """Read the imported topic, unless the stream or the run has ended."""
        importer = self._get_importer()
        if importer is None:
            return None
        if previous is None:
            return importer.update(None, {}, self._now_us())
        has_run_ended = self._has_started and self._ends.is_bounded and previous.end_of_run
        recorded = previous.imported
        if previous.final or has_run_ended:
            # Nothing follows a final CTI, and later CTIs belong to the next run.
            return recorded
        if recorded and change:
            options = map(derive_import_options, (change.before, change.after))
            recorded = change_import(recorded, *options)
        return importer.update(recorded, previous.topic_ids, self._now_us())

    def _add_lacking_ends(
        self, high_watermarks: Mapping[Partition, int], partitions: Iterable[Partition]
    ) -> dict[Partition, int]:
        """Add the ends of partitions that metadata may have lacked for a moment; ask once more.

        An imported CTI waits for the end that a log had when it was read, or for a later one.
        """
        lacking = set(partitions) - high_watermarks.keys()
        return {**high_watermarks, **(self._broker.high_watermarks(lacking) if lacking else {})}

    def _examine_logs(self, previous: StreamOffset, run: RunContext) -> BrokerSnapshot:
        """Find the positions to go on at, new partitions, and losses (semantics 5.5, 5.6, 9.1)."""
        ended = self._find_ended(previous)
        last_positions = previous.ends
        open_positions = _leave_out(last_positions, ended)
        reachable = self._ends.wait_for(open_positions)
        if run.new_start:
            reachable |= self._ends.correct_bounds(open_positions)
        ends = limit_ends(reachable, previous.fixed_ends, ended)
        readable_ends = self._ends.readable_ends
        # A bounded run has a bound for a partition even if it is gone: look at the logs as well.
        new = [
            partition
            for partition in ends
            if partition not in last_positions and partition in readable_ends
        ]
        has_caught_up = not new and not run.new_start and ends == last_positions
        returning = {partition.topic for partition in new if partition in previous.missing}
        topic_ids, earliest = self._identify(
            previous, last_positions if has_caught_up else None, returning
        )
        recreated = find_recreated_topics(previous.topic_ids, topic_ids)
        returned = _note_returned(previous, new, recreated)
        positions, losses = reconcile(
            open_positions | returned,
            earliest,
            readable_ends,
            recreated=recreated,
            unchanged=find_unchanged_topics(previous.topic_ids, topic_ids),
        )
        report_losses(self._options, *losses)
        starts = {
            partition: earliest[partition]
            for partition in new
            if partition in earliest and partition not in returned
        }
        return BrokerSnapshot(
            positions={**positions, **ended, **starts},
            ends=ends,
            lost=bool(losses or returned),
            topic_ids=topic_ids,
        )

    def _find_ended(self, previous: StreamOffset) -> dict[Partition, int]:
        """Return the positions of the partitions that have reached their own ends (7.6, 7.7)."""
        until_us = self._options.ending_cti_us
        clocks = {} if until_us is None else self._end_states.find(self._options, previous).clocks
        return find_ended(previous, clocks, until_us)

    def _identify(
        self,
        previous: StreamOffset,
        caught_up_at: Mapping[Partition, int] | None,
        returning: Set[str],
    ) -> tuple[Mapping[str, str], Mapping[Partition, int]]:
        """Return the ids of the topics, and the first offsets of their partitions.

        A stream that has caught up, at the positions `caught_up_at`, has no unread records to lose,
        so it saves the request. The ids of the topics `returning` must be told, because only these
        tell whether their partitions were missing (5.6) or are others.
        """
        readable_ends = self._ends.readable_ends
        if caught_up_at is not None:
            topic_ids = {**self._imported_ids, **self._topic_ids.get(readable_ends)}
            earliest = caught_up_at
            has_new_ids = bool(find_recreated_topics(previous.topic_ids, topic_ids))
        else:
            stream_ids, earliest = self._broker.identify(readable_ends)
            if returning - stream_ids.keys():
                stream_ids |= self._topic_ids.require(returning, "partitions are there again")
            self._topic_ids.note(stream_ids)
            topic_ids = {**self._imported_ids, **stream_ids}
            has_new_ids = not previous.topic_ids.items() >= topic_ids.items()
        if has_new_ids:
            # The first offsets may be the earlier topic's.
            earliest = self._broker.earliest(readable_ends)
        return topic_ids, earliest

    def _ask_time_index(self, state: StreamState) -> Mapping[Partition, int | None]:
        """Return how far, as offsets, `maxSkew` lets the batch read (semantics 5.10)."""
        if not self._options.is_timed_by_record:
            return {}
        return self._broker.offsets_at(
            compute_alignment(state, state.snapshot.ends).list_instants_ms()
        )

    # -- batches that were planned ----------------------------------------------------------------

    def read_offset(self, value: Mapping[str, Any]) -> StreamOffset:
        """Read an offset that Spark gives back.

        Raises:
            CheckpointUnreadable: an earlier run wrote it, and it is damaged.
        """
        first, number = self._first_planned, value.get("number")
        if first is not None and isinstance(number, int) and number >= first:
            return StreamOffset.from_json(value)
        return read_recorded_offset(value)

    def find_recreated(self, offset: StreamOffset, ranges: Iterable[OffsetRange]) -> frozenset[str]:
        """Return the topics that were created again since a batch that now runs again (9.1).

        Args:
            offset: the end of the batch, or of several that Spark joins (8.6).
            ranges: the ranges that all of them read.

        Raises:
            DataLost: there is such a topic, and option `failOnDataLoss` is true.
            BrokerUnreachable: the brokers do not tell a topic's id.
        """
        if self._first_planned is not None:
            # Spark runs a batch again as the first one of a run.
            return frozenset()
        topics = {offset_range.partition.topic for offset_range in ranges if offset_range.size}
        recorded = {name: topic_id for name, topic_id in offset.topic_ids.items() if name in topics}
        if not recorded:
            return frozenset()
        self._connect(offset.stream)
        topic_ids = self._topic_ids.require(recorded.keys(), f"batch {offset.number} runs again")
        recreated = find_recreated_topics(recorded, topic_ids)
        if recreated:
            report_losses(
                self._options,
                f"batch {offset.number} runs again without the records of "
                f"{name_topics(recreated)}, deleted and created again since it was planned",
            )
        return recreated

    def plan_joined_batches(self, start: Mapping[str, Any], end: StreamOffset) -> list[TaskPlan]:
        """Plan the tasks of all batches after `start` up to `end` as one batch."""
        self._connect(end.stream)
        if is_initial_offset(start):
            return join_batches(None, {}, end, None)
        previous = self.read_offset(start)
        clocks = self._end_states.find(self._options, previous).clocks
        return join_batches(previous, clocks, end, find_emitted_cti(previous, clocks))

    def note_end(
        self,
        offset: StreamOffset,
        range_ends: Mapping[Partition, RangeEnd],
        commit: Callable[[], object],
    ) -> None:
        """Note the clocks after the batch `offset`, because this process has read its rows.

        `commit` runs in the background, because only a restart reads its texts in the group. The
        next `plan` waits for it.
        """
        self._end_states.note(offset, range_ends)
        self._committing = self._commit_thread.submit(commit)

    def _wait_for_commit(self) -> None:
        committing, self._committing = self._committing, None
        if committing is not None:
            committing.result()

    def mark_committed(self, end: Mapping[str, Any]) -> None:
        """Record that the batch `end` is committed, so that no restart runs it again."""
        if not is_initial_offset(end):
            number = end.get("number")
            if type(number) is not int:
                raise damaged_offset("its batch number is not a whole number", end.get("stream"))
            self._committed_batch = max(self._committed_batch, number)

    def progress(self) -> dict[str, Any] | None:
        """Return the progress report of the batch planned last."""
        if self.planned is None:
            return None
        return build_progress(
            self.planned,
            self._ends.readable_ends,
            self._options,
            [warning.line for warning in recall_warnings(self.planned.warnings)],
        )

    # -- the brokers ------------------------------------------------------------------------------

    def _connect(self, stream: str | None) -> None:
        """Connect to the brokers as the consumer group of the stream; None if it has no id yet."""
        prefix = self._options.group_prefix
        group = prefix if stream is None else group_name(prefix, stream)
        if self._connected_broker is None or self._connected_broker.group != group:
            self._connected_broker = self._create_broker(self._options, group)

    @property
    def _broker(self) -> Broker:
        if self._connected_broker is None:
            raise AssertionError("the broker was asked before it was connected")
        return self._connected_broker


def _note_returned(
    previous: StreamOffset, new: Iterable[Partition], recreated: Set[str]
) -> dict[Partition, int]:
    """Return, and log, the positions of partitions that were missing and are there again."""
    returned = {
        partition: previous.missing[partition].end_exclusive
        for partition in new
        if partition in previous.missing and partition.topic not in recreated
    }
    for partition, position in returned.items():
        _LOG.warning("%s is there again; going on at offset %d", partition, position)
    return returned


def _list_unpinned(options: KafkaOptions, stream: str) -> dict[str, str]:
    """Return the options that `explain` shows although they may change on a checkpoint."""
    texts = {"group": options.client.get("group.id") or group_name(options.group_prefix, stream)}
    if options.idle_timeout_us is not None:
        texts["idleTimeout"] = format_duration(options.idle_timeout_us)
    if options.max_offsets is not None:
        texts["maxOffsetsPerTrigger"] = str(options.max_offsets)
    if options.final_cti:
        texts["finalCti"] = "true"
    return texts


def _leave_out(
    positions: Mapping[Partition, int], ended: Container[Partition]
) -> dict[Partition, int]:
    return {partition: at for partition, at in positions.items() if partition not in ended}
