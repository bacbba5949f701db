"""Options that Spark's own suites want to be refused, by both sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from both_sources import REFUSED, Both, alike
from broker import Broker, Record
from lengths import outside_ci

pytestmark = pytest.mark.timeout(300)

T = "t"


@pytest.mark.parametrize(
    "options",
    [
        {"subscribe": T, "startingOffsets": "latest"},
        {},
        {"subscribe": T, "kafka__auto__offset__reset": "earliest"},
        {"subscribe": T, "minPartitions": "0"},
        *outside_ci(
            {"subscribe": T, "startingOffsets": {T: {"0": -1}}},
            {"subscribe": T, "endingOffsets": "earliest"},
            {"subscribe": T, "endingOffsets": {T: {"0": -2}}},
            {"subscribe": T, "subscribePattern": "t.*"},
            {"subscribe": T, "assign": {"a": [0]}},
            {"assign": ""},
            {"subscribe": ""},
            {"subscribePattern": ""},
            {"subscribe": T, "kafka__auto__offset__reset": "none"},
            {"subscribe": T, "kafka__enable__auto__commit": "true"},
            {"subscribe": T, "kafka__interceptor__classes": "a.B"},
            {"subscribe": T, "kafka__key__deserializer": "a.B"},
            {"subscribe": T, "kafka__value__deserializer": "a.B"},
            {"subscribe": T, "startingTimestamp": "soon"},
        ),
    ],
    ids=str,
)
def test_bad_options_are_refused(both: Both, options: dict[str, Any]) -> None:
    alike(both, lambda source: source.read(**options).collect(), REFUSED)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": T, "minOffsetsPerTrigger": 20, "maxOffsetsPerTrigger": 15},
        *outside_ci(
            {"subscribe": T, "subscribePattern": "t.*"},
            {"subscribe": T, "assign": {"a": [0]}},
            {"assign": ""},
            {"subscribe": ""},
            {"subscribePattern": ""},
        ),
    ],
    ids=str,
)
def test_bad_options_of_a_stream_are_refused_before_it_starts(
    both: Both, options: dict[str, Any]
) -> None:
    alike(both, lambda source: source.stream(**options), REFUSED)


@pytest.mark.outside_ci
@pytest.mark.difference("the end of a stream")
def test_end_of_a_stream_is_refused_by_spark_and_bounds_ours(
    both: Both, broker: Broker, topic: Callable[..., str]
) -> None:
    name = topic()
    broker.produce(name, [Record("1"), Record("2")])
    spark, ours = both
    with pytest.raises(Exception, match="not valid in streaming"):
        spark.run(subscribe=name, endingOffsets="latest")
    assert ours.run(subscribe=name, endingOffsets="latest") == [[1, 2]]
