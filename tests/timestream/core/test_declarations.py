"""Option declarations: texts that read back, the reference table, and what a checkpoint keeps."""

from dataclasses import dataclass, fields

import pytest

from pyspark_timestream.clock.time_options import TimeOptions
from pyspark_timestream.core.declarations import (
    BOOLEAN,
    TEXT,
    choice,
    option,
    option_specs,
    pinned_settings,
    whole_number,
)
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_tseries.options import ReadOptions, SubscribeOptions, WriteOptions

CLASSES = [TimeOptions, KafkaOptions, WriteOptions, ReadOptions, SubscribeOptions]
DEFAULTS = [
    pytest.param(spec, field.default, id=f"{cls.__name__}.{spec.name}")
    for cls in CLASSES
    for field in fields(cls)
    for spec in [option_specs(cls).get(field.name)]
    if spec is not None and not spec.required
]
TEXTS = {
    "assign": '{"a": [0, 2], "b": [1]}',
    "startingOffsets": '{"a": {"0": 23, "1": -2}}',
    "endingOffsets": '{"a": {"0": 23, "1": -1}}',
    "startingOffsetsByTimestamp": '{"a": {"0": 1700000000000}}',
    "subscribe": "a,b",
    "writers": "a,b",
    "startTime": "header:time",
    "ctiFrequency": "5 seconds",
    "ctiDelay": "-1 tick",
    "maxTriggerDelay": "90 seconds",
    "ctiImport": '{"topic": "fast", "frequency": "10", "delay": "0 ticks", "startTime": "t"}',
    "failOnDataLoss": "false",
    "timeZero": "2026-01-01T00:00:00Z",
    "period": "1/3",
    "rate": "max",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Options of every kind of default."""

    path: str = option("path", TEXT, description="where")
    prefix: str = option("prefix", TEXT, "", description="before")
    most: int | None = option("most", whole_number(1), None, description="limit", effect="stream")
    mode: str = option("mode", choice("a", "b"), "a", description="how", is_pinned=True)
    exact: bool = option("exact", BOOLEAN, True, description="so", is_pinned=True)
    until: int | None = option(
        "until", whole_number(), None, description="end", effect="batch", is_pinned=True
    )


@pytest.mark.parametrize(("spec", "default"), DEFAULTS)
def test_the_text_of_a_default_reads_back(spec, default):
    written = spec.text_of(default)
    if default is None and spec.parser.none_text is None:
        assert written is None
    else:
        assert spec.parser.parse(written) == default


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_value_reads_back_and_is_canonical(name):
    declared = {spec.name: spec for cls in CLASSES[:2] for spec in option_specs(cls).values()}
    reader, text_of = declared[name].parser, declared[name].text_of
    value = reader.parse(TEXTS[name])
    assert text_of(value) == TEXTS[name]
    assert reader.parse(text_of(value)) == value


def test_fixed_settings_are_the_options_that_may_not_change():
    assert pinned_settings(Sample("/a", most=3)) == {"mode": "a", "exact": "true"}
    assert pinned_settings(Sample("/b", until=0)) == {"mode": "a", "exact": "true", "until": "0"}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_option_is_described_in_one_line(cls):
    for spec in option_specs(cls).values():
        assert spec.description == " ".join(spec.description.split())
        assert spec.description
        assert " | " not in spec.description
