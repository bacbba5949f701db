"""Options `schemaRegistry.*`: passed on as the client has them, or refused; secrets stay secret."""

import re
from pathlib import Path

import pytest
from timestream.builders import GIVEN, options

from pyspark_timestream import OptionError
from pyspark_timestream.clock.time_options import read_time_options
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.keys import REGISTRY_KEYS, read_registry_settings

URL = {"schemaRegistry.url": "http://registry:8081"}
AVRO = {"valueFormat": "avro", **URL}


def refusal(**raw):
    with pytest.raises(OptionError) as refused:
        read_kafka_options({**GIVEN, **AVRO, **raw})
    message = str(refused.value)
    assert message.startswith(f"option '{refused.value.name}': ")
    assert "; accepted: " in message
    assert "; next step: " in message
    return message


def settings(**more):
    given = {f"schemaRegistry.{key}": text for key, text in more.items()}
    return dict(options(**{**AVRO, **given}).registry)


def test_settings_go_to_the_client_by_its_own_names():
    given = {
        "url": "https://a:1",
        "basic.auth.user.info": "u:p:q",
        "ssl.ca.location": "/ca.pem",
        "timeout": "2.5",
        "max.retries": "4",
    }
    raw = {f"SCHEMAREGISTRY.{key.upper()}": text for key, text in given.items()}
    assert options(valueFormat="avro", **raw).registry == given


def test_names_are_those_of_the_installed_client():
    from confluent_kafka.schema_registry._sync import schema_registry_client
    from confluent_kafka.schema_registry.common import _oauthbearer

    source = "".join(
        Path(module.__file__).read_text(encoding="utf-8")
        for module in (schema_registry_client, _oauthbearer)
    )
    theirs = set(re.findall(r"conf(?:_copy)?\.pop\('([a-z.]+)'", source))
    refused = {"cache.capacity", "cache.latest.ttl.sec"}
    refused |= {key for key in theirs if key.startswith("bearer.auth.custom.")}
    assert set(REGISTRY_KEYS) == theirs - refused
    for key in refused:
        assert "use " in refusal(**{f"schemaRegistry.{key}": "1"})


def test_no_setting_is_none():
    assert options().registry == {}


@pytest.mark.parametrize("key", REGISTRY_KEYS)
def test_a_misspelt_setting_is_refused_with_the_nearest_name_and_without_its_value(key):
    misspelt = key[:2] + "x" + key[2:]
    message = refusal(**{f"schemaRegistry.{misspelt}": "hunter2"})
    assert message.startswith(f"option 'schemaRegistry.{misspelt}': there is no such option")
    assert f"did you mean 'schemaRegistry.{key}'?" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("ssl.truststore.location", "schemaRegistry.ssl.ca.location"),
        ("ssl.keystore.location", "schemaRegistry.ssl.certificate.location"),
        ("basic.auth.credentials.source", "schemaRegistry.basic.auth.user.info"),
        ("subject.name.strategy", "'valueSubject'"),
        ("auto.register.schemas", "registers no schemas"),
        ("cache.latest.ttl.sec", "kept under its id"),
        ("request.timeout.ms", "schemaRegistry.timeout"),
    ],
)
def test_a_setting_of_other_clients_is_refused_with_what_there_is(key, instead):
    message = refusal(**{f"schemaRegistry.{key}": "hunter2"})
    assert instead in message
    assert "hunter2" not in message


def test_a_function_as_a_source_of_tokens_is_refused():
    message = refusal(**{"schemaRegistry.bearer.auth.custom.provider.function": "os.system"})
    assert "a program's own code" in message


def test_the_prefix_of_confluents_serializers_is_refused_with_ours():
    message = refusal(**{"schema.registry.basic.auth.user.info": "u:hunter2"})
    assert message.startswith("option 'schema.registry.basic.auth.user.info': it is not supported")
    assert "use 'schemaRegistry.basic.auth.user.info'" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("timeout", value) for value in ("0", "-1", "soon", "1e3", "", "nan", "inf", "1234567")),
        *(("max.retries", value) for value in ("-1", "many", "1.5", "", "1234567")),
        *(("retries.wait.ms", value) for value in ("-1", "1 s")),
        ("retries.max.wait.ms", "x"),
    ],
)
def test_a_number_that_is_not_one_is_refused(key, value):
    message = refusal(**{f"schemaRegistry.{key}": value})
    assert message.startswith(f"option 'schemaRegistry.{key}': its value is not such a number")


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("http://reader:hunter2@a:1", "reader:hunter2"),
        ("http://reader:hunter%402@a:1/,http://reader:hunter%402@b", "reader:hunter@2"),
        ("http://reader:hunter2@a:1,http://b", "reader:hunter2"),
    ],
)
def test_a_login_in_the_address_is_moved_out_of_it(url, login):
    found = settings(url=url)
    assert "hunter" not in found["url"]
    assert "@" not in found["url"]
    assert found["basic.auth.user.info"] == login
    assert found["url"].startswith("http://a:1")


def test_an_address_keeps_its_path_and_loses_what_is_not_one():
    assert settings(url=" https://A.example/sr/ ,http://[::1]:8081/ ")["url"] == (
        "https://a.example/sr,http://[::1]:8081"
    )


@pytest.mark.parametrize(
    "url",
    [
        "registry:8081",
        "mock://a",
        "file:///x",
        "http://",
        "http://a:x",
        "http://a,",
        "",
        " ",
        "a b",
    ],
)
def test_an_address_that_cannot_be_is_refused_without_the_text(url):
    message = refusal(**{"schemaRegistry.url": url})
    assert message.startswith("option 'schemaRegistry.url': ")
    assert "http:// or https:// addresses" in message


def test_an_address_is_needed():
    with pytest.raises(OptionError, match=r"option 'schemaRegistry.url': it is missing"):
        options(valueFormat="avro", **{"schemaRegistry.timeout": "1"})


def test_two_logins_are_refused():
    login = {"schemaRegistry.basic.auth.user.info": "a:hunter2"}
    message = refusal(**{"schemaRegistry.url": "http://b:hunter2@a"}, **login)
    assert "it has another login than" in message
    assert "hunter2" not in message
    assert "lacks a ':'" in refusal(**{"schemaRegistry.basic.auth.user.info": "hunter"})


def test_a_token_alone_is_enough():
    assert settings(**{"bearer.auth.token": "t"}) == {
        "url": "http://registry:8081",
        "bearer.auth.token": "t",
        "bearer.auth.credentials.source": "STATIC_TOKEN",
        "bearer.auth.logical.cluster": "",
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"basic.auth.user.info": "a:b", "bearer.auth.token": "t"}, "it conflicts with a login"),
        ({"bearer.auth.scope": "s"}, "there is no token either"),
        ({"bearer.auth.credentials.source": "hunter2"}, "its value is none of them"),
        ({"bearer.auth.credentials.source": "CUSTOM"}, "its value is none of them"),
    ],
)
def test_bearer_settings_that_cannot_be_are_refused(more, said):
    message = refusal(**{f"schemaRegistry.{key}": text for key, text in more.items()})
    assert said in message
    assert "hunter2" not in message


SECRETS = {
    "url": "http://reader:hunter2@a",
    "basic.auth.user.info": "reader:hunter2",
    "bearer.auth.token": "hunter2",
    "bearer.auth.client.secret": "hunter2",
    "ssl.key.password": "hunter2",
    "proxy": "http://reader:hunter2@a",
}


@pytest.mark.parametrize("key", SECRETS)
def test_a_secret_is_in_no_repr_no_setting_and_no_message_about_another_option(key):
    raw = {**AVRO, f"schemaRegistry.{key}": SECRETS[key]}
    if key == "bearer.auth.client.secret":
        raw["schemaRegistry.bearer.auth.credentials.source"] = "OAUTHBEARER"
    given = options(**raw)
    assert "hunter2" in str(given.registry)
    assert "hunter2" not in f"{given!r} {given} {given.settings()}"
    for wrong in (
        {"startTme": "x"},
        {"maxTasks": "0"},
        {"valueFraming": "none"},
        {"subscribe": "/"},
    ):
        assert "hunter2" not in refusal(**{**raw, **wrong})


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize("prefix", ["schemaRegistyr.", "schemaregistry", "registry.", ""])
def test_a_secret_under_a_misspelt_prefix_is_not_shown(key, prefix):
    message = refusal(**{f"{prefix}{key}": SECRETS[key]})
    assert "there is no such option" in message
    assert "hunter2" not in message


def test_settings_of_a_registry_are_not_in_a_checkpoint():
    first = options(**AVRO, **{"schemaRegistry.timeout": "1"})
    other = options(valueFormat="avro", **{"schemaRegistry.url": "https://elsewhere"})
    assert first.settings() == other.settings()
    assert not any("egistry" in name for name in first.settings())


def test_a_clock_refuses_a_registry():
    with pytest.raises(OptionError, match="schemaregistry"):
        read_time_options({"schemaRegistry.url": "http://a"})


def test_read_registry_settings_takes_lower_cased_names():
    given = {"schemaregistry.url": "http://a", "subscribe": "t"}
    assert read_registry_settings(given) == {"url": "http://a"}
