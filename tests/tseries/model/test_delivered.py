"""CTIs of a subscription: true for everything that follows, in any pieces of reading."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tseries.builders import batch, new_store
from tseries.subscriber import rows_of

from pyspark_tseries.errors import OutOfOrder
from pyspark_tseries.model.ranges import parse_initial
from pyspark_tseries.read.delivery import InitialEvents, Position
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.store.store import Store

EVERYTHING = InitialEvents(parse_initial("unlimited"), {})

COMMITS = st.lists(
    st.tuples(
        st.sampled_from("xyz"),
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=4),
        st.none() | st.integers(0, 30),
    ),
    min_size=1,
    max_size=12,
)
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=20)


def commit(store, number, writer, rows, cti_us):
    made = batch(
        *[(f"{writer}{name}", us) for name, us in rows], token=(f"tseries:q:{writer}", number)
    )
    store.append(replace(made, cti_us=cti_us))


class Subscriber:
    """Reads in batches of given sizes, opened again before each; notes rows and CTIs."""

    def __init__(self, path):
        self.path, self.position = path, Subscription(path, EVERYTHING).find_start()
        self.delivered = []

    def poll(self, size=None):
        follower = Subscription(self.path, EVERYTHING)
        end = follower.find_end(self.position, size).with_cti(follower.ctis())
        if end == self.position:
            return False
        end = Position.from_json(end.to_json())
        self.delivered.append((rows_of(follower.plan_tasks(self.position, end)), end.cti))
        self.position = end
        return True


def deliver(path, sizes):
    """Pairs of rows and the CTI that follows them, as batches of these sizes deliver them."""
    subscriber = Subscriber(path)
    for size in sizes:
        subscriber.poll(size)
    while subscriber.poll():
        pass
    return subscriber.delivered


@settings(max_examples=25, deadline=None)
@given(COMMITS, SIZES, st.sets(st.integers(0, 12)))
def test_every_cti_is_true_of_all_later_rows_in_any_split(tmp_path_factory, commits, sizes, polls):
    path = str(tmp_path_factory.mktemp("s") / "s")
    store, times, left = new_store(path, {"limit": 1000}), {}, iter(sizes)
    subscriber = Subscriber(path)
    for number, (writer, rows, cti_us) in enumerate(commits):
        promised = Store.open(path).metadata().ctis.store_us
        try:
            commit(store, number, writer, rows, cti_us)
        except OutOfOrder:
            continue
        assert all(promised is None or us >= promised for _, us in rows)
        for name, us in sorted(rows):
            times.setdefault(f"{writer}{name}", []).append(us)
        if number in polls:
            subscriber.poll(next(left, None))
    while subscriber.poll(next(left, None)):
        pass
    delivered = subscriber.delivered
    rows = [(at, *row) for at, (part, _) in enumerate(delivered) for row in part]
    assert sorted(row[1:] for row in rows) == [
        (name, sequence) for name in sorted(times) for sequence in range(len(times[name]))
    ]
    ctis = [cti for _, cti in delivered]
    for at, name, sequence in rows:
        before = [cti for cti in ctis[:at] if cti is not None]
        assert all(times[name][sequence] >= cti for cti in before)
    promised = Store.open(path).metadata().ctis.store_us
    assert not ctis or ctis[-1] == promised


def test_cti_comes_with_the_batch_that_completes_its_commit(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 100})
    for number in range(3):
        commit(store, number, "x", [("a", 10 * number), ("b", 10 * number)], 10 * number + 5)
    position = replace(
        Subscription(str(store.root), EVERYTHING).find_start(), initial=False, commit=-1
    )
    position = replace(position, began=-1, seen=0)
    found = []
    for _ in range(6):
        follower = Subscription(str(store.root), EVERYTHING)
        position = follower.find_end(position, 1).with_cti(follower.ctis())
        found.append(position.cti)
    assert found == [None, 5, 5, 15, 15, 25]


def test_cti_waits_until_the_initial_events_are_delivered(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 100})
    for number, name in enumerate("abc"):
        commit(store, number, "x", [(name, number)], number)
    assert [cti for _, cti in deliver(str(store.root), [1, 1, 1])] == [None, None, 2]


def test_commit_without_rows_brings_a_cti_alone(tmp_path):
    store = new_store(tmp_path / "s", {"limit": 100})
    commit(store, 0, "x", [("a", 1)], 1)
    commit(store, 1, "x", [], 7)
    path = str(store.root)
    assert [cti for _, cti in deliver(path, [])] == [7]
    commit(store, 1, "x", [], 9)
    assert Store.open(path).metadata().ctis.store_us == 7
