"""No command, page, log, progress or error shows a secret; commands and options are the declared.

Every option of every command that takes one gets a secret, so that a new command is tested without
further code. No server answers, so each command ends in its error.
"""

import contextlib
import json
import logging
import re
from types import SimpleNamespace

import pytest
from timestream.driven import Driven, FakeBroker
from timestream.progress_events import event

import pyspark_timestream.__main__ as streams
import pyspark_tseries.__main__ as stores
from pyspark_timestream.commands.metrics_export import TimeMetrics
from pyspark_timestream.core.declarations import is_secret
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.options.keys import REGISTRY_KEYS

CANARY = "c4n4ry-Tw33t"
NOBODY = "127.0.0.1:1"
"""Nothing listens there."""

CLIENT_SECRETS = (
    *("sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.assertion.private.key.passphrase"),
)
REGISTRY_SECRETS = tuple(key for key in REGISTRY_KEYS if is_secret(f"schemaRegistry.{key}", ""))


def list_commands(main, capsys):
    """The commands that `--help` lists, and the help of each."""
    with pytest.raises(SystemExit):
        main(["--help"])
    (names,) = re.findall(r"\{([\w,-]+)\}", capsys.readouterr().out)[:1]
    told = {}
    for name in names.split(","):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        told[name] = capsys.readouterr().out
    return told


def run(main, arguments, capsys, caplog):
    """The output of a command, and its log."""
    with caplog.at_level(logging.DEBUG), contextlib.suppress(SystemExit):
        main(arguments)
    out, err = capsys.readouterr()
    return out + err + caplog.text


def test_no_command_over_topics_shows_a_secret(capsys, caplog, tmp_path):
    asked = [
        name for name, told in list_commands(streams.main, capsys).items() if "--option" in told
    ]
    assert {"peek", "lateness", "watch"} <= set(asked)
    (tmp_path / "offsets").mkdir()
    for name in asked:
        place = [str(tmp_path), "--json"] if name == "watch" else ["topic"]
        options = {
            "kafkaConsumer.connectTimeoutMs": "300",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "me",
            "kafka.sasl.password": CANARY,
        }
        for odd in ({}, {"sasl.password": CANARY}, {"kafka.sasl.pasword": CANARY},
                    {"kafka.sasl.jaas.config": CANARY}, {"saslPassword": CANARY}):  # fmt: skip
            given = [f"--option={key}={text}" for key, text in {**options, **odd}.items()]
            arguments = [name, *place, "--bootstrap-servers", NOBODY, *given]
            said = run(streams.main, arguments, capsys, caplog)
            assert said
            assert CANARY not in said, (arguments, said)


def test_no_command_over_stores_shows_a_secret(capsys, caplog):
    commands = list_commands(stores.main, capsys)
    assert commands.keys() == stores.COMMANDS.keys()
    for name, told in commands.items():
        assert "--storage-option" in told
        more = {"backup": ["/tmp/none"], "rollup": ["--into", f"s3://me:{CANARY}@b/into"],
                "erase": ["--series", "a", "--sequence", "1", "--reason", "r"],
                "forget-writer": ["--writer", "w"]}.get(name, [])  # fmt: skip
        for path, option in ((f"s3://me:{CANARY}@bucket/x", "AWS_REGION=eu"),
                             ("s3://bucket/x", f"AWS_SECRET_ACCESS_KEY={CANARY}"),
                             ("s3://bucket/x", f"AWS_SECRET_KEY_={CANARY}")):  # fmt: skip
            arguments = [name, path, *more, "--storage-option", option]
            said = run(stores.main, arguments, capsys, caplog)
            assert said, arguments
            assert CANARY not in said, (arguments, said)


KEYS = (
    *(f"kafka.{key}" for key in CLIENT_SECRETS),
    *(f"schemaRegistry.{key}" for key in REGISTRY_SECRETS),
)


@pytest.mark.parametrize("key", KEYS)
def test_no_offset_progress_or_page_has_a_secret(key):
    raw = {"valueFraming": "confluent", "valueFormat": "json"} if key.startswith("sch") else {}
    raw |= {"schemaRegistry.url": f"https://me:{CANARY}@registry"} if raw else {}
    try:
        driven = Driven(FakeBroker(p0=(0, 9)), ctiFrequency="10", **raw, **{key: CANARY})
    except OptionError as error:
        # Some need others beside them.
        assert CANARY not in f"{error!r}"  # noqa: PT017
        return
    driven.plan()
    options = driven.driver._options
    metrics = TimeMetrics()
    whole = {"endOffset": json.dumps(driven.offset), "latestOffset": driven.driver.progress()}
    told = {**event(), "sources": [whole]}
    metrics.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(json=json.dumps(told))))
    assert "timestream_query_active" in metrics.text()
    shown = [driven.offset, driven.driver.progress(), options, options.settings()]
    assert CANARY not in repr(shown) + metrics.text(), key


def test_an_address_with_a_login_is_a_secret_in_a_table_and_a_snippet():
    assert is_secret("path", f"s3://key:{CANARY}/x@bucket")
    assert is_secret("path", f"s3://{CANARY}@bucket")
    assert not is_secret("path", "s3://bucket/a@b")
