"""Objects shared by threads and forks make none of them wait for ever."""

import os
import threading

from pyspark_timestream.core.processes import ProcessLock, begin_in_forks, lazy


class Answer:
    def __init__(self):
        self.computed = 0

    @lazy
    def value(self):
        """The answer."""
        self.computed += 1
        return [42]


def test_a_lazy_value_is_computed_once_and_kept():
    answer, other = Answer(), Answer()
    assert answer.value is answer.value
    assert (answer.computed, other.computed) == (1, 0)
    assert Answer.value.__doc__ == "The answer."


def test_lazy_values_of_two_objects_do_not_wait_for_each_other():
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        @lazy
        def value(self):
            if begun.is_set():
                return 1
            begun.set()
            return may_end.wait(60)

    slow = Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    begun.wait(60)
    assert Slow().value == 1
    may_end.set()
    thread.join(60)
    assert slow.value is True


def test_a_fork_begins_anew_what_was_registered_and_is_still_there():
    class Shared:
        lock = None

        def begin_child(self):
            self.lock = os.getpid()

    kept = Shared()
    begin_in_forks(kept)
    begin_in_forks(Shared())
    child = os.fork()
    if not child:
        os._exit(0 if kept.lock == os.getpid() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept.lock is None


def test_a_fork_has_a_free_lock_and_forgets_what_its_parent_kept():
    kept = {"a": 1}
    lock = ProcessLock(kept.clear)
    with lock:
        child = os.fork()
        if not child:
            with lock:
                os._exit(1 if kept else 0)
        assert os.waitpid(child, 0)[1] == 0
    assert kept == {"a": 1}
