"""Generates CTIs from events: for a partition (semantics 2.3 to 2.5) or for each writer (4.8).

The generator counts events, or measures the application time since the last trigger; an in-band
CTI that takes effect restarts both. So such CTIs cut a block into segments, and each segment is
computed as columns.

With `writerFrom` every event names its writer, and every writer has its own generator: a counter,
or the base of a timespan (4.9). A CTI that it generates counts as a mark of that writer, so that
`marks.fold_marks` finds the live writers, those silent for too long, and the minimum over all live
writers, which is the partition's CTI (4.10).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.instants import (
    FINAL_US,
    MIN_US,
    NEVER,
    Instants,
    Mask,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.rules.marks import (
    MarkEffects,
    Marks,
    Proposals,
    fold_marks,
    max_in_segments,
)
from pyspark_timestream.rules.state import Events, PartitionState, TimeRules, WriterState

_EVENTS_PER_SEARCH: Final = 50
"""One single search costs about as much as this many events in a search for all at once."""


@dataclass(frozen=True, slots=True)
class GeneratedCtis:
    """The CTIs of a block, and the generator's state after it.

    Attributes:
        index: each CTI comes right after the record with this index; -1: before the first.
        us: the CTIs, strictly increasing, each above the one in force before the block.
        count: the counter after the block.
        base_us: the base of the timespan after the block.
        effective: true for each proposal that took effect.
    """

    index: Instants
    us: Instants
    count: int
    base_us: int | None
    effective: Mask


def generate_ctis(
    rules: TimeRules,
    state: PartitionState,
    rows: Instants,
    times: Instants,
    proposals: Proposals,
) -> GeneratedCtis:
    """Run the generator over a block; `rows` and `times` are those of its counted events."""
    cti_us = instant_or_sentinel(state.cti_us)
    rising = _find_rising(cti_us, proposals)
    if rules.every_events is not None or rules.every_us is not None:
        return _interleave(rules, state, rows, times, proposals, rising)
    # No generated CTI comes between them, so each rising proposal takes effect.
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    effective[rising] = True
    count = 0 if len(rising) else state.count
    cuts, us = proposals.cuts[rising], proposals.us[rising]
    return GeneratedCtis(cuts - 1, us, count, state.base_us, effective)


def _interleave(
    rules: TimeRules,
    state: PartitionState,
    rows: Instants,
    times: Instants,
    proposals: Proposals,
    rising: Instants,
) -> GeneratedCtis:
    """Generate CTIs between the `rising` proposals.

    Each round generates CTIs over the next `ahead` proposals as if none of these took effect, and
    cuts the result at the first that does, the winner.
    """
    cti_us = instant_or_sentinel(state.cti_us)
    count, base_us = state.count, state.base_us
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    indices, ctis, begin, position, ahead = [], [], 0, 0, 1
    ends = np.searchsorted(rows, proposals.cuts[rising]).tolist()
    while position < len(rising):
        tried = rising[position : position + ahead]
        end = ends[position + len(tried) - 1]
        index, us, later_count, later_us = _generate_segment(
            rules, cti_us, count, base_us, rows[begin:end], times[begin:end]
        )
        winner, generated = _find_first_effective(cti_us, index, us, proposals, tried)
        indices.append(index[:generated])
        ctis.append(us[:generated])
        if winner is None:
            # None took effect: try twice as many in the next round.
            begin, position, ahead = end, position + len(tried), 2 * ahead
            cti_us, count, base_us = int(us[-1]) if len(us) else cti_us, later_count, later_us
            continue
        cti_us, count = int(proposals.us[tried[winner]]), 0
        base_us = base_us if rules.every_us is None else cti_us
        effective[tried[winner]] = True
        indices.append(proposals.cuts[tried[winner : winner + 1]] - 1)
        ctis.append(proposals.us[tried[winner : winner + 1]])
        begin, position, ahead = ends[position + winner], position + winner + 1, winner + 1
    index, us, count, base_us = _generate_segment(
        rules, cti_us, count, base_us, rows[begin:], times[begin:]
    )
    indices.append(index)
    ctis.append(us)
    return GeneratedCtis(np.concatenate(indices), np.concatenate(ctis), count, base_us, effective)


def _find_first_effective(
    cti_us: int, index: Instants, us: Instants, proposals: Proposals, some: Instants
) -> tuple[int | None, int]:
    """Return the first of `some` proposals that takes effect, and the number of CTIs before it.

    The CTIs `us` were generated as if none took effect; if the first is None, all of them stay.
    """
    if len(some) == 1:
        in_force_us = us[-1] if len(us) else cti_us
        return 0 if proposals.us[some[0]] > in_force_us else None, len(us)
    before = np.searchsorted(index, proposals.cuts[some])
    in_force = np.concatenate(([cti_us], us))[before]
    effective = np.flatnonzero(proposals.us[some] > in_force)
    return (int(effective[0]), int(before[effective[0]])) if len(effective) else (None, len(us))


def _find_rising(cti_us: int, proposals: Proposals) -> Instants:
    """Find the proposals that are greater than all before them: no other can take effect."""
    highest = np.maximum.accumulate(np.concatenate(([cti_us], proposals.us)))
    return np.flatnonzero(highest[1:] > highest[:-1])


def _generate_segment(
    rules: TimeRules,
    cti_us: int,
    count: int,
    base_us: int | None,
    rows: Instants,
    times: Instants,
) -> tuple[Instants, Instants, int, int | None]:
    """Generate CTIs from the events between two in-band CTIs; also return counter and base."""
    triggers, count, base_us = _find_triggers(rules, count, base_us, times)
    due = np.clip(times[triggers] - rules.delay_us, MIN_US, FINAL_US)
    highest = np.maximum.accumulate(np.concatenate(([cti_us], due)))
    rises = highest[1:] > highest[:-1]
    return rows[triggers[rises]], due[rises], count, base_us


def _find_triggers(
    rules: TimeRules, count: int, base_us: int | None, times: Instants
) -> tuple[Instants, int, int | None]:
    """Find the counted events that trigger a CTI, and the counter and base after them."""
    if len(times) and rules.every_events is not None:
        first_trigger = rules.every_events - 1 - count
        triggers = np.arange(first_trigger, len(times), rules.every_events, dtype=np.int64)
        return triggers, (count + len(times)) % rules.every_events, base_us
    if len(times) and rules.every_us is not None:
        base_us = int(times[0]) if base_us is None else base_us
        triggers = _find_span_triggers(times, base_us, rules.every_us)
        return triggers, count, int(times[triggers[-1]]) if len(triggers) else base_us
    return np.empty(0, dtype=np.int64), count, base_us


def _follow_few_triggers(highest: Instants, base_us: int, span_us: int) -> Instants:
    event, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while event < len(highest):
        chain.append(event)
        event = int(np.searchsorted(highest, int(highest[event]) + span_us))
    return np.array(chain, dtype=np.int64)


def _find_span_triggers(times: Instants, base_us: int, span_us: int) -> Instants:
    """Find the triggers: each is the first event at least `span_us` after the trigger before it.

    The first event that reaches a bound is also the first at which the running maximum does. So one
    binary search over all events finds every event's successor, and a loop follows the chain, one
    step per CTI. If few events can trigger, search only for the successors in the chain.
    """
    highest = np.maximum.accumulate(times)
    if (int(highest[-1]) - base_us) // span_us < len(times) // _EVENTS_PER_SEARCH:
        return _follow_few_triggers(highest, base_us, span_us)
    successor = np.searchsorted(highest, highest + span_us).tolist()
    event, chain = int(np.searchsorted(highest, base_us + span_us)), []
    while event < len(times):
        chain.append(event)
        event = successor[event]
    return np.array(chain, dtype=np.int64)


def fold_written_events(
    rules: TimeRules, state: PartitionState, events: Events, rows: Instants, times: Instants
) -> MarkEffects:
    """Fold the events of a block; each counted event, in `rows`, moves its writer's clock."""
    clock = _accumulate_seen_times(rules, state, events.record_us)
    marks, generators = run_writer_clocks(rules, state, events.writers, (rows, times), clock)
    effects = fold_marks(rules, state, marks, events.record_us, len(events.start_us))
    # A writer without events in the block keeps its generator.
    generators = {**dict(state.writers), **generators}
    writers = []
    for name, writer in effects.writers:
        generator = generators.get(name, writer)
        updated = writer._replace(counted=generator.counted, base_us=generator.base_us)
        writers.append((name, updated))
    # The marks here are generated; none was written, so none can be ignored or noted.
    no_marks = np.zeros(len(effects.proposals.us), dtype=np.bool_)
    return effects._replace(
        writers=tuple(writers),
        noted_us=state.noted_us,
        proposals=effects.proposals._replace(is_mark=no_marks),
    )


def _accumulate_seen_times(
    rules: TimeRules, state: PartitionState, record_us: Instants | None
) -> Instants | None:
    """Return the greatest record timestamp so far at each of n records; None without a timeout.

    Records before the first timestamp get that one (semantics 4.5).
    """
    if rules.writer_timeout_us is None or record_us is None:
        return None
    before = instant_or_sentinel(state.record_us)
    clock = np.maximum.accumulate(np.concatenate(([before], record_us)))[1:]
    times_us = clock[clock > NEVER]
    return np.maximum(clock, times_us[0]) if len(times_us) else None


@dataclass(frozen=True, slots=True)
class _Runs:
    """The m events, sorted by writer and for each writer by offset, and their r runs.

    A run is a writer's events in a block; if the writer was forgotten in between, it starts over
    with a new run (4.5).

    Attributes:
        times: m instants.
        is_first: m booleans: a run begins here.
        numbers: m numbers of runs.
        begins: r indexes of events.
        counts: r counters, before each run.
        bases_us: r instants: the base of each run's timespan.
    """

    times: Instants
    is_first: Mask
    numbers: Instants
    begins: Instants
    counts: Instants
    bases_us: Instants


def run_writer_clocks(
    rules: TimeRules,
    state: PartitionState,
    writers: pa.Array,
    counted_events: tuple[Instants, Instants],
    clock: Instants | None,
) -> tuple[Marks, dict[str, WriterState]]:
    """Run every writer's generator over a block, on columns, for any number of writers.

    Sort the events by writer and cut them into runs, then find the triggers of all runs at once. An
    event that neither raises its writer's CTI nor begins a run changes nothing and becomes no mark,
    unless `writerTimeout` needs to know when its writer was last seen.

    `counted_events` are the rows and times of the events, and `clock` the greatest record timestamp
    so far. Return the CTIs as marks, sorted by writer, and the generators of the block's writers.
    """
    rows, times = counted_events
    timeout_us = rules.writer_timeout_us
    encoded = writers.take(pa.array(rows)).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy()
    # NumPy sorts numbers of two bytes in linear time.
    by_writer = np.argsort(codes.astype(np.uint16) if len(names) < 2**16 else codes, kind="stable")
    codes, rows = codes[by_writer], rows[by_writer]
    is_new = _find_changes(codes)
    live = dict(state.writers)
    before = [live.get(name, WriterState()) for name in names]
    is_silent = np.zeros(len(codes), dtype=np.bool_)
    if clock is not None and timeout_us is not None:
        is_silent = _find_silences(before, codes, is_new, clock[rows], timeout_us, clock)
    runs = _cut_runs(before, times[by_writer], codes, is_new, is_silent)
    triggers, counts, bases_us = _find_run_triggers(rules, runs)
    us = np.full(len(codes), NEVER)
    us[triggers] = np.clip(runs.times[triggers] - rules.delay_us, MIN_US, FINAL_US)
    marked = np.arange(len(codes))
    if timeout_us is None:
        marked = np.flatnonzero(runs.is_first | _find_rises(max_in_segments(us, runs.is_first)))
    lasts = runs.numbers[np.flatnonzero(np.append(is_new[1:], len(codes) > 0))]
    generators = {
        names[code]: WriterState(
            None, None, int(counts[last_run]), instant_or_none(bases_us[last_run])
        )
        for code, last_run in zip(codes[is_new].tolist(), lasts.tolist(), strict=True)
    }
    all_ = np.ones(len(marked), dtype=np.bool_)
    marked_by = pa.DictionaryArray.from_arrays(pa.array(codes[marked]), encoded.dictionary)
    return Marks(rows[marked], us[marked], all_, all_, marked_by, ~all_), generators


def _find_changes(codes: Instants) -> Mask:
    is_first = np.ones(len(codes), dtype=np.bool_)
    is_first[1:] = codes[1:] != codes[:-1]
    return is_first


def _find_rises(us: Instants) -> Mask:
    rises = np.ones(len(us), dtype=np.bool_)
    rises[1:] = us[1:] > us[:-1]
    return rises


def _find_silences(
    before: list[WriterState],
    codes: Instants,
    is_new: Mask,
    seen_us: Instants,
    timeout_us: int,
    clock: Instants,
) -> Mask:
    """Find the events before which their writer was silent for too long (semantics 4.5)."""
    previous_us = np.roll(seen_us, 1)
    earlier = [clock[0] if writer.seen_us is None else writer.seen_us for writer in before]
    previous_us[is_new] = np.array(earlier, dtype=np.int64)[codes[is_new]]
    is_silent: Mask = seen_us > previous_us + timeout_us
    return is_silent


def _cut_runs(
    before: list[WriterState], times: Instants, codes: Instants, is_new: Mask, is_silent: Mask
) -> _Runs:
    is_first = is_new | is_silent
    begins = np.flatnonzero(is_first)
    goes_on = (is_new & ~is_silent)[begins]
    counts = np.array([writer.counted for writer in before], dtype=np.int64)
    bases_us = np.array([instant_or_sentinel(writer.base_us) for writer in before], dtype=np.int64)
    codes_of_runs = codes[begins]
    based = np.where(goes_on, bases_us[codes_of_runs], NEVER)
    return _Runs(
        times=times,
        is_first=is_first,
        numbers=np.cumsum(is_first) - 1,
        begins=begins,
        counts=np.where(goes_on, counts[codes_of_runs], 0),
        bases_us=np.where(based == NEVER, times[begins], based),
    )


def _find_run_triggers(rules: TimeRules, runs: _Runs) -> tuple[Instants, Instants, Instants]:
    """Find the events that trigger a CTI, and each run's counter and base after it."""
    never = np.full(len(runs.begins), NEVER)
    if not len(runs.times):
        return np.empty(0, np.int64), runs.counts, never
    if rules.every_events is not None:
        offsets = runs.counts - runs.begins + 1
        phases = (np.arange(len(runs.times)) + offsets[runs.numbers]) % rules.every_events
        ends = np.append(runs.begins[1:], len(runs.times))
        return np.flatnonzero(phases == 0), phases[ends - 1], never
    if rules.every_us is not None:
        triggers = _find_run_span_triggers(runs, rules.every_us)
        bases_us = runs.bases_us.copy()
        # NumPy assigns in order, so a run keeps its last trigger.
        bases_us[runs.numbers[triggers]] = runs.times[triggers]
        return triggers, runs.counts, bases_us
    raise AssertionError("writers' clocks have a frequency")


def _find_run_span_triggers(runs: _Runs, span_us: int) -> Instants:
    """Find the triggers: each is the first event of its run `span_us` or more after the last.

    Stack the runs by the ranks of their running maxima, so that one search finds the successors in
    all of them; past a run's last event it finds the next run's first.
    """
    highest = max_in_segments(runs.times, runs.is_first)
    values = np.unique(highest)
    height = len(values) + 1
    ground = runs.numbers * height
    ranks = ground + np.searchsorted(values, highest)
    successors = np.searchsorted(ranks, ground + np.searchsorted(values, highest + span_us))
    first_ranks = np.searchsorted(values, runs.bases_us + span_us)
    firsts = np.searchsorted(ranks, np.arange(len(runs.begins)) * height + first_ranks)
    ends = np.append(runs.begins[1:], len(highest))
    following, chain = successors.tolist(), []
    for event, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        while event < end:
            chain.append(event)
            event = following[event]
    return np.array(chain, dtype=np.int64)
