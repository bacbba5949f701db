"""Any copy made file by file while writers go on opens at a whole commit, or is repaired."""

import os
import random
from pathlib import Path

import pytest
from lengths import in_ci
from tseries.builders import batch, forget_stores, stored
from tseries.subscriber import make

from pyspark_tseries.errors import TseriesError
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import parse_range
from pyspark_tseries.store import log
from pyspark_tseries.store.admin_commits import set_retained_range
from pyspark_tseries.store.checkpoints import wait_for_checkpoints
from pyspark_tseries.store.store import Store

Tree = dict[str, bytes]
EVENT = ("series", "sequence", "commit")


def read_tree(root: Path) -> Tree:
    files = (Path(where) / name for where, _, names in os.walk(root) for name in names)
    return {str(file.relative_to(root)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Tree], list[tuple]]:
    """A store's files before and after each entry of its log, and all its events at the end."""
    root = tmp_path_factory.mktemp("written") / "s"
    trees: list[Tree] = []
    with pytest.MonkeyPatch.context() as patch:
        real = log.write_entry

        def write_entry(*arguments, **named):
            wait_for_checkpoints()
            trees.append(read_tree(root))
            real(*arguments, **named)
            trees.append(read_tree(root))

        store = make(root)
        patch.setattr(log, "write_entry", write_entry)
        rng = random.Random(3)
        for number in range(46):
            rows = [(name, number) for name in rng.sample("abcd", rng.randrange(1, 4))]
            edits = [("a", 0, float(number))] if number > 2 and number % 3 == 0 else []
            store.append(batch(("a", number) if number == 0 else rows[0], *rows[1:], edits=edits))
            if number % 12 == 7:
                compact(str(root))
            if number == 30:
                set_retained_range(store, parse_range("last 9D"), store.read_clock(), "me")
            if number % 15 == 14:
                # As quick as a copy: what left the store less than ten minutes ago stays.
                remove_obsolete_files(store, store.read_clock())
                trees.append(read_tree(root))
    forget_stores()
    return trees, stored(root, *EVENT)


ORDERS = ["log first", "log last", "head first", "any", "names mixed"]


def copy_slowly(trees: list[Tree], target: Path, rng: random.Random, order: str) -> tuple[int, int]:
    """Copy the files of a store that changes meanwhile; return the first and last moment."""
    folders = sorted({os.path.dirname(path) for tree in trees for path in tree})
    rng.shuffle(folders)
    place = {"log first": "_delta_log", "head first": "_tseries/head", "log last": "_delta_log"}
    if order in place:
        folders.remove(place[order])
        folders.insert(len(folders) if order == "log last" else 0, place[order])
    first = now = rng.randrange(len(trees) - 2)
    pace = rng.choice([0.02, 0.1, 0.3, 2])

    def pass_time() -> int:
        return min(now + int(rng.expovariate(1 / pace)), len(trees) - 1)

    plan: list[tuple[int, str]] = []
    for folder in folders:
        now = pass_time()
        plan += [(now, path) for path in trees[now] if os.path.dirname(path) == folder]
        if order != "names mixed":
            rng.shuffle(plan)
            for _, path in plan:
                now = pass_time()
                write(trees, now, path, target, rng)
            plan = []
    rng.shuffle(plan)  # As a program that lists all directories first.
    for _, path in plan:
        now = pass_time()
        write(trees, now, path, target, rng)
    return first, now


def write(trees: list[Tree], now: int, path: str, target: Path, rng: random.Random) -> None:
    content = trees[now].get(path)
    if content is None:
        return
    file = target / path
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = now > 0 and path not in trees[now - 1] and not path.startswith("_delta_log")
    if is_new and rng.random() < 0.5:
        content = content[: rng.randrange(len(content) + 1)]  # Read while it was written.
    file.write_bytes(content)


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
def test_copy_of_a_store_that_is_written_opens_at_a_whole_commit_or_is_repaired(
    moments, tmp_path, order, request
):
    trees, events = moments
    opened = repaired = given_up = 0
    for number in range(in_ci(2, 5)):
        rng = random.Random(f"{request.node.name} {number}")
        root = tmp_path / str(number)
        first, last = copy_slowly(trees, root, rng, order)
        forget_stores()
        try:
            Store.open(str(root))
            sound = not verify(str(root))
            opened += sound
        except TseriesError:
            sound = False
        if not sound:
            done = repair(str(root))
            repaired += 1
            if done.left:
                assert any("--give-up" in sentence for sentence in map(str, done.left)), done
                done = repair(str(root), give_up=True)
                given_up += 1
            assert not done.left, (number, first, last, done)
        forget_stores()
        assert verify(str(root)) == [], (number, first, last)
        found = stored(root, *EVENT)
        newest = max((event[2] for event in found), default=-1)
        assert found == [event for event in events if event[2] <= newest]
        Store.open(str(root)).append(batch(("z", 10**6)))
