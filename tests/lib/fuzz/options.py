"""Options of every kind, conditions and descriptions of topics: read, or refused by name.

Every secret is the one text `CANARY`. No message and no `repr` may show it. The names come from the
declarations, so a new option is fuzzed without further work.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
import refused_texts

from fuzz.engine import Chance, Finding, Target
from fuzz.mutations import TEXTS, damage_json_text, damage_text
from pyspark_timestream.clock.time_options import TimeOptions, read_time_options
from pyspark_timestream.core.declarations import OptionSpec, is_secret, option_specs
from pyspark_timestream.kafka.decode.condition import resolve_condition
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.keys import JVM_ONLY, PREFIX, REGISTRY_KEYS, RUNS_CODE
from pyspark_timestream.kafka.options.parsers import SettingsSource
from pyspark_timestream.kafka.options.where import WHERE
from pyspark_timestream.kafka.reader_schemas import load_schemas
from pyspark_timestream.kafka.topic_settings import parse_settings, read_topic_settings
from pyspark_timestream.kafka.writer.write_options import KafkaWriteOptions, read_write_options
from pyspark_tseries.options import (
    ReadOptions,
    SubscribeOptions,
    WriteOptions,
    parse_any_read,
    parse_options,
)

CANARY: Final = "c4n4ry-Tw33t"
LEGAL: Final = (
    "1", "true", "false", "topic", "a,b", "5 minutes", "earliest", "latest", "json", "drop", "cti",
    "header:writer", "field:at", '{"topic": [0, 1]}', '{"topic": {"0": 5}}', "1 second", "limit 3",
    "last 5D", "2024-01-01T00:00:00Z", "/tmp/store", "10", "point", "interval", "UTC", "n count",
    "s3://bucket/store", "1 hour", "i > 5", '{"type": "long"}', "confluent", "none", "avro",
)  # fmt: skip
CLIENT_KEYS: Final = (
    "bootstrap.servers", "group.id", "isolation.level", "sasl.password", "sasl.username",
    "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "fetch.min.bytes",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "security.protocol",
    "sasl.oauthbearer.assertion.private.key.pem", "enable.idempotence",
    "partition.assignment.strategy", *JVM_ONLY, *RUNS_CODE,
)  # fmt: skip
READERS: Final[Mapping[type, Callable[[Mapping[str, str]], Any]]] = {
    KafkaOptions: lambda raw: load_schemas(read_kafka_options(raw)),
    KafkaWriteOptions: read_write_options,
    TimeOptions: read_time_options,
    WriteOptions: partial(parse_options, WriteOptions),
    ReadOptions: parse_any_read,
    SubscribeOptions: partial(parse_options, SubscribeOptions),
}
REQUIRED: Final[Mapping[type, Mapping[str, str]]] = {
    KafkaOptions: {"kafka.bootstrap.servers": "b:1", "subscribe": "topic"},
    KafkaWriteOptions: {"kafka.bootstrap.servers": "b:1"},
    TimeOptions: {},
    WriteOptions: {"path": "/tmp/store"},
    ReadOptions: {"path": "/tmp/store"},
    SubscribeOptions: {"path": "/tmp/store"},
}
_LOGIN: Final = f"s3://key:{CANARY}@bucket/store"


def any_text(chance: Chance, spec: OptionSpec | None = None) -> str:
    """The text of an option: a legal one of its own or of another one, or a hostile one."""
    wrong = [*refused_texts.KAFKA.values(), *refused_texts.TIME.values(), ("x",)]
    text = chance.choice([*LEGAL, *LEGAL, *TEXTS, *chance.choice(wrong)])
    if spec is not None and chance.random() < 0.3 and not spec.required:
        text = spec.text_of(spec.default) or text
    return damage_text(text, chance) if chance.random() < 0.2 else text


def make_options(chance: Chance) -> tuple[int, dict[str, str]]:
    """A map of options for one of the readers."""
    kind = chance.randrange(len(READERS))
    declared = list(option_specs(list(READERS)[kind]).values())
    raw = dict(list(REQUIRED.values())[kind]) if chance.random() < 0.9 else {}
    for _ in range(chance.choice([0, 1, 1, 2, 3, 6])):
        spec, odd = chance.choice(declared), chance.random()
        name = spec.name if odd < 0.9 else damage_text(spec.name, chance)
        raw[name] = any_text(chance, spec)
    if chance.random() < 0.4:
        key = f"kafka.{chance.choice(CLIENT_KEYS)}"
        if chance.random() < 0.3:
            key = PREFIX + chance.choice(REGISTRY_KEYS)
        if chance.random() < 0.2:
            key = key.partition(".")[2] if chance.random() < 0.5 else key.replace(".", "_")
        raw[key] = CANARY if is_secret(key, "") else any_text(chance)
    if chance.random() < 0.1:
        place = chance.choice(["path", "schemaRegistry.url", "storageOptions.AWS_ENDPOINT_URL"])
        raw[place] = _LOGIN
    if chance.random() < 0.1:
        raw["storageOptions.AWS_SECRET_ACCESS_KEY"] = CANARY
    return kind, raw


def run_options(case: tuple[int, dict[str, str]]) -> str:
    """Read options; their texts read back to the same options."""
    kind, raw = case
    owner = list(READERS)[kind]
    try:
        read = READERS[owner](raw)
    except Exception as error:
        if CANARY in f"{error}{error!r}":
            raise Finding(f"a secret is shown: {error}") from error
        raise
    assert CANARY not in repr(read), read
    for field, spec in option_specs(type(read)).items():
        value = getattr(read, field)
        text = spec.text_of(value)
        if text is not None and spec.is_pinned:
            assert spec.parser.parse(text) == value, (spec.name, text, value)
    return "read"


def options() -> Target:
    """Options of both sources and of both sinks."""
    return Target(make_options, run_options)


SCHEMA: Final = {
    "i": pa.int64(), "s": pa.string(), "d": pa.float64(), "b": pa.bool_(),
    "at": pa.timestamp("us", "UTC"), "dec": pa.decimal128(10, 2), "cti": None,
    "st": pa.struct([("x", pa.int32())]),
}  # fmt: skip
UTC: Final = datetime.UTC
ROWS: Final = pa.RecordBatch.from_pylist(
    [
        {"i": 5, "s": "x", "d": 1e3, "b": True, "at": datetime.datetime(2024, 1, 1, tzinfo=UTC)},
        {"i": -(2**63), "s": "a_b%\0", "d": float("nan"), "b": False, "dec": Decimal("1.50")},
        {"s": "", "d": -0.0, "st": {"x": 5}, "offset": 3},
        {},
    ],
    pa.schema([*((name, kind) for name, kind in SCHEMA.items() if kind), ("offset", pa.int64())]),
)
CONDITIONS: Final = (
    "i > 5 and s <> 'x'", "s like '%a\\_b%' or b", "not (i between 1 and 5)", "st.x is null",
    "i in (1, 2, null)", "at >= timestamp'2024-01-01 00:00:00Z'", "dec <=> 1.50", "d = 1e3",
    "b is true", "(i = 5 or (s = 'a' and d < .5))", "`s` = X'00'", "s = 'it''s' -- no",
)  # fmt: skip
WORDS: Final = (
    *("and", "or", "not", "(", ")", "in", "like", "null", "=", "<", "<=>", "is", "between", "case"),
    *(
        "select",
        "i",
        "s",
        "st.x",
        "'a'",
        "5",
        "1e400",
        "cast",
        "/*",
        "--",
        "||",
        ".",
        ",",
        "*",
        ";",
    ),
)


def conditions() -> Target:
    """The text of option `where`."""

    def make(chance: Chance) -> str:
        if chance.random() < 0.2:
            return " ".join(chance.choice(WORDS) for _ in range(chance.choice([3, 9, 40])))
        if chance.random() < 0.03:
            return "not " * chance.choice([50, 3000]) + "b" + " or b" * chance.choice([0, 3000])
        text = chance.choice(CONDITIONS)
        for _ in range(chance.randrange(4)):
            text = f"({text}) {chance.choice(['and', 'or'])} {chance.choice(CONDITIONS)}"
        return damage_text(text, chance) if chance.random() < 0.7 else text

    def run(case: str) -> str:
        try:
            where = WHERE.parse(case)
        except ValueError:
            return "refused"
        condition = resolve_condition(where, SCHEMA, {"offset": pa.int64()})
        whole = condition.find(ROWS.column, ROWS.num_rows).tolist()
        each = [ROWS.slice(row, 1) for row in range(ROWS.num_rows)]
        assert whole == [condition.find(row.column, 1).tolist()[0] for row in each]
        return "found"

    return Target(make, run)


def descriptions() -> Target:
    """The records of a topic for option `timeSettings`."""
    whole = {"startTime": "field:at", "ctiDelay": "5 minutes", "ctiFrequency": 10, "timeUnit": "ms"}

    def make(chance: Chance) -> str:
        return damage_json_text({**whole, "idleTimeout": any_text(chance)}, chance)

    def run(case: str) -> str:
        content = case.encode("utf-8", "surrogatepass")
        place = SettingsSource("topic:settings", topic="settings")
        texts = read_topic_settings(parse_settings(content, "it"), "trips", place)
        again = read_topic_settings(texts, "trips", place)
        assert again == texts, (texts, again)
        json.dumps(texts)
        return "read"

    return Target(make, run)


TARGETS: Final = {"options": options, "conditions": conditions, "descriptions": descriptions}
