"""Ctrl-C in a notebook ends a call anywhere; the next call is as if it had not been made."""

import inspect
import sys

import pyarrow as pa
import pytest
from lengths import with_rest_outside_ci

from pyspark_tseries import TimeSeries

CALLS = {
    "append": lambda store: store.append("a", 1.0),
    "edit": lambda store: store.edit("a", 0, 2.0),
    "select": lambda store: store.range_query().select_from(),
    "latest": lambda store: store.latest(),
    "series": lambda store: store.series(),
    "sql": lambda store: store.sql("SELECT count(*) FROM all_events").fetchall(),
    "as_of": lambda store: store.as_of(0).latest(),
}


class Interrupt:
    """Raises KeyboardInterrupt when the package has begun `number` functions."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _):
        # A generator's frame is also begun to close it, where Python drops what is raised.
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if event == "call" and "pyspark_tseries" in frame.f_code.co_filename and not is_generator:
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
        return None

    def run(self, call, store):
        """Make a call; return whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call(store)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def count(store):
    """Count the stored events by all questions, which must agree."""
    events = store.range_query().for_edits().select_from()
    newest = store.latest(["a"]).events[0]
    ((stored,),) = store.sql("SELECT count(*) FROM all_events").fetchall()
    listed = store.series()
    assert len(events) == stored == sum(listed["events"].to_pylist() + listed["edits"].to_pylist())
    originals = [event.sequence for event in events.events if not event.is_edit]
    assert newest.original_sequence == originals[-1]
    return stored


@pytest.mark.thorough
@pytest.mark.parametrize("name", with_rest_outside_ci(CALLS, ["append", "edit"]))
def test_a_call_that_is_interrupted_anywhere_leaves_the_next_one_right(tmp_path, name):
    store = TimeSeries.create(
        tmp_path / "s", {"n": pa.float64()}, "unlimited", auto_compact=False, durability="os"
    )
    acknowledged = store.append("a", 1.0).sequence + 1
    number, was_interrupted = 0, True
    while was_interrupted:
        # Something is new for each call, so that all that a process keeps must be brought up to
        # date.
        acknowledged = store.append("a", 1.0).sequence + 1
        was_interrupted = Interrupt(number).run(CALLS[name], store)
        more = int(name in ("append", "edit"))
        assert acknowledged <= count(store) <= acknowledged + more
        number += 1 + number // 10
    assert number > 10
    assert store.verify() == []
