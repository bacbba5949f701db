"""The clients that a worker keeps between tasks."""

from types import SimpleNamespace

import pytest

from pyspark_timestream.kafka.client import consumer
from pyspark_timestream.kafka.client.consumer import Pool


class Thing:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class World:
    """A clock and a process id that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 2, idle_s: float = 10) -> None:
        self.now_s = 0.0
        self.pid = 1
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(consumer, "time", clock)
        monkeypatch.setattr(consumer, "os", SimpleNamespace(getpid=lambda: self.pid))
        self.pool: Pool[Thing] = Pool(most, idle_s)

    def use(self, key: object) -> Thing:
        with self.pool.acquire(key, Thing) as thing:
            assert not thing.closed
        return thing


def test_a_thing_made_for_one_task_serves_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    assert world.use("a") is world.use("a")
    assert world.use("b") is not world.use("a")


def test_a_thing_whose_task_failed_is_closed_and_never_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    first = world.use("a")
    with pytest.raises(ValueError, match="task"), world.pool.acquire("a", Thing) as again:
        raise ValueError("task")
    assert again is first
    assert first.closed == 1
    assert world.use("a") is not first


def test_pool_above_its_limit_closes_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, most=2)
    a, b = world.use("a"), world.use("b")
    assert world.use("a") is a
    c = world.use("c")
    assert [a.closed, b.closed, c.closed] == [0, 1, 0]


def test_pool_closes_items_idle_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, most=9, idle_s=10)
    old, other = world.use("old"), world.use("other")
    world.now_s = 10.5
    assert world.use("other") is other
    assert [old.closed, other.closed] == [1, 0]


def test_two_borrowers_at_once_have_one_each_and_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    with world.pool.acquire("a", Thing) as outer:
        inner = world.use("a")
        assert inner is not outer
    assert inner.closed == 1
    assert world.use("a") is outer


def test_forked_child_neither_uses_nor_closes_inherited_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, most=1)
    parents = world.use("a")
    world.pid = 2
    assert world.use("a") is not parents
    world.use("b")
    assert parents.closed == 0
