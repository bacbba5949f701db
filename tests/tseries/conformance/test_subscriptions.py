"""Diffusion's conformance cases of subscriptions, through what a subscriber in Spark runs on."""

import pytest
from tseries.builders import batch
from tseries.cases import build
from tseries.subscriber import Client, make

from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model.ranges import DEFAULT_INITIAL, parse_initial
from pyspark_tseries.read.delivery import InitialEvents, read_delivery
from pyspark_tseries.read.subscription import Subscription


@pytest.fixture
def store(tmp_path):
    """The series `s` with 25 originals, a millisecond apart."""
    made = make(tmp_path / "s")
    made.append(batch(*(("s", 1000 * n) for n in range(25))), clock=lambda: 0)
    return made


def sequences(got):
    return [sequence for _, sequence in got or ()]


@pytest.mark.parametrize(
    ("number", "text", "expected"),
    [
        ("B1", None, [24]),
        ("B2", "none", []),
        ("B3", "limit 3", [22, 23, 24]),
        ("B4", "last 0MS", [24]),
    ],
)
def test_b1_b2_b3_b4_what_a_subscriber_gets_first(store, number, text, expected):
    client = Client(store.root, DEFAULT_INITIAL if text is None else parse_initial(text))
    assert sequences(client.poll()) == expected
    store.append(batch(("s", 25_000)))
    assert sequences(client.poll()) == [25]


def test_b6_superseded_edits_do_not_count_toward_the_initial_events(tmp_path):
    """Diffusion says nothing here: the last of `latestEdits`, without 2."""
    build(tmp_path)
    assert sequences(Client(tmp_path / "S1", parse_initial("limit 3")).poll()) == [0, 1, 3]


def test_b7_every_edit_is_delivered_with_the_metadata_of_its_original(store):
    initial = InitialEvents(parse_initial("none"), {})
    follower = Subscription(store.root, initial)
    start = follower.find_end(follower.find_start(), None)
    for _ in range(2):
        store.append(batch(edits=[("s", 0)]))
    end = follower.find_end(start, None)
    parts = [part for task in follower.plan_tasks(start, end) for part in read_delivery(task)]
    rows = [row for part in parts for row in part.to_pylist()]
    assert [(row["sequence"], row["original_sequence"]) for row in rows] == [(25, 0), (26, 0)]
    assert {row["original_author"] for row in rows} == {"me"}
    assert all(row["original_timestamp"].timestamp() == 0 for row in rows)


def test_b8_who_comes_later_gets_the_last_event_and_not_what_others_got(store):
    assert len(Client(store.root, parse_initial("limit 20")).poll()) == 20
    store.append(batch(("s", 25_000)))
    assert sequences(Client(store.root).poll()) == [25]


def test_b9_who_comes_back_gets_what_it_missed(store):
    client = Client(store.root)
    client.poll()
    for n in range(3):
        store.append(batch(("s", 25_000 + n), edits=[("s", n)]))
    compact(store.root)
    assert sequences(client.drain())[1:] == [25, 26, 27, 28, 29, 30]


def test_b10_events_come_in_the_order_of_sequences_an_edit_not_beside_its_original(store):
    client = Client(store.root, parse_initial("limit 2"))
    client.poll()
    store.append(batch(("s", 25_000), edits=[("s", 24)]))
    assert sequences(client.drain()) == [23, 24, 25, 26]


@pytest.mark.parametrize("most", [1, 2, 7, None])
def test_b11_events_are_never_conflated_however_slow_the_reader_is(store, most):
    client = Client(store.root, parse_initial("none"))
    for n in range(5):
        store.append(batch(("s", 25_000), ("s", 25_000), edits=[("s", n)]))
    assert sequences(client.drain(most)) == list(range(25, 40))


def test_b13_no_more_comes_first_than_is_retained(tmp_path):
    store = make(tmp_path / "s", "limit 4")
    store.append(batch(*(("s", n) for n in range(9))))
    assert sequences(Client(store.root, parse_initial("limit 7")).poll()) == [5, 6, 7, 8]


def test_r15_nobody_is_told_of_what_is_discarded(tmp_path):
    store = make(tmp_path / "s", "limit 2")
    store.append(batch(*(("s", n) for n in range(9))))
    client = Client(store.root)
    client.poll()
    compact(store.root)
    assert client.poll() is None
