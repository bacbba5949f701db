"""The whole source chain and a store under seeds that decide every fault."""

import itertools
import re

import pytest
from lengths import in_ci, outside_ci
from simulation.kept_seeds import KEPT
from simulation.seeds import first_seed, make_world, run_seeds
from simulation.world import World

_A_KEPT_SEED, *_OTHER_KEPT_SEEDS = KEPT

# A process that is killed closes no file.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

SHARDS = 4
SIMULATION_SECONDS = in_ci(1, 10)
"""Of each shard: `make simulate` looks for longer."""


@pytest.mark.parametrize("shard", range(SHARDS))
def test_seeds_of_this_commit_deliver_what_the_oracle_says(shard: int) -> None:
    first = first_seed() + shard
    report = run_seeds(itertools.count(first, SHARDS), SIMULATION_SECONDS)
    print(f"seeds {first}, {first + SHARDS}, ...: {report}")
    assert report.findings == []
    # One seed may meet no fault, and a slow machine has time for one only.
    assert report.faults or report.seeds == 1


@pytest.mark.thorough
def test_a_seed_decides_everything() -> None:
    seeds = (1, 3, 4, 5)
    runs, others = ([make_world(seed).run_quietly() for seed in seeds] for _ in range(2))
    for one, other in zip(runs, others, strict=True):
        assert one.chance.steps == other.chance.steps
        assert one.chance.hits == other.chance.hits
        assert one.sink.batches == other.sink.batches
    first, again = runs[0], others[0]
    assert first.checkpoint.offsets == again.checkpoint.offsets


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [_A_KEPT_SEED, *outside_ci(*_OTHER_KEPT_SEEDS)])
def test_a_seed_that_failed_once_is_kept(seed: int) -> None:
    make_world(seed).run()


def test_faults_end_after_the_steps_that_are_given() -> None:
    world = World(2, faults=0)
    world.run()
    assert not [name for name in world.chance.hits if name.startswith("kill at")]


@pytest.mark.outside_ci
@pytest.mark.thorough
def test_a_finding_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "compare", lambda world: 1 / 0)
    report = run_seeds([4], 60, lambda line: None)
    (finding,) = report.findings
    assert re.search(r"ZeroDivisionError.*make simulate SEED=4 FAULTS=0$", finding)
