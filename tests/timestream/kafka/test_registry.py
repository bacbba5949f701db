"""The registry's client against a registry that answers, refuses, hangs, lies or is gone."""

import base64
import json
import logging
import pickle
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from schema_registry import Mode, Reference, serve_schema_registry
from timestream.builders import options as build_options

from pyspark_timestream import MissingExtra, OptionError, SchemaRegistryError
from pyspark_timestream.kafka import registry as module
from pyspark_timestream.kafka.reader_schemas import load_schemas, pin_reader_schemas
from pyspark_timestream.kafka.registry import (
    SchemaRegistry,
    read_retry_after,
    request_limit_s,
)
from pyspark_timestream.kafka.schemas import RegisteredSchema, SchemaReference

LONG = '{"type": "long"}'
QUICK = {
    "timeout": "5",
    "max.retries": "1",
    "retries.wait.ms": "1",
    "retries.max.wait.ms": "1",
}


@pytest.fixture(autouse=True)
def _unknown(monkeypatch):
    """Forget other tests' schemas: their registry may have had the same port."""
    monkeypatch.setattr(module, "_SCHEMAS", {})


@pytest.fixture
def stub():
    with serve_schema_registry() as served:
        yield served


def connect(url, **more):
    return SchemaRegistry({"url": url, **QUICK, **more})


def refusal(fetch):
    """The message of a failed fetch, and the seconds that it took."""
    began = time.monotonic()
    with pytest.raises(SchemaRegistryError) as raised:
        fetch()
    assert "; next step: " in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    return str(raised.value), time.monotonic() - began


# -- what is fetched, and how often ----------------------------------------------------------------


def test_fetch_schema_asks_once_a_process_and_id(stub):
    number = stub.register("trips-value", LONG)
    wanted = RegisteredSchema(number, "AVRO", LONG)
    registry = connect(stub.url)
    assert registry.fetch_schema(number, "avro") == wanted
    assert registry.fetch_schema(number, "avro") == wanted
    # As another task of the same worker gets it from the driver.
    assert pickle.loads(pickle.dumps(registry)).fetch_schema(number, "avro") == wanted
    assert stub.count(f"/schemas/ids/{number}") == 1


def test_fetch_schema_in_two_threads_at_once_asks_once(stub):
    number = stub.register("trips-value", LONG)
    stub.mode = Mode.SLOW
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(connect(stub.url).fetch_schema(number, "avro"))
        )
        for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each.text for each in found] == [LONG] * 3
    assert stub.count(f"/schemas/ids/{number}") == 1


def test_fetch_schema_that_is_known_needs_no_registry(stub):
    number = stub.register("trips-value", LONG)
    registry = connect(stub.url)
    registry.fetch_schema(number, "avro")
    for mode in (Mode.GONE, Mode.HANGING, Mode.FAILING):
        stub.mode = mode
        assert registry.fetch_schema(number, "avro").text == LONG


def test_schema_that_is_sent_along_needs_no_registry_in_a_new_process(stub):
    number = stub.register("trips-value", LONG)
    latest = connect(stub.url).fetch_latest("trips-value", "avro")
    settings = {"url": stub.url, **QUICK}
    sent = pickle.dumps(SchemaRegistry(settings, {("avro", "", latest.key): latest}))
    stub.mode = Mode.GONE
    assert pickle.loads(sent).fetch_schema(number, "avro") == latest
    refusal(lambda: pickle.loads(sent).fetch_schema(number, "protobuf"))


def test_fetch_schema_under_another_login_asks_again(stub):
    number = stub.register("trips-value", LONG)
    connect(stub.url).fetch_schema(number, "avro")
    stub.user_info = "a:b"
    assert "401" in refusal(
        lambda: connect(stub.url, **{"basic.auth.user.info": "a:c"}).fetch_schema(number, "avro")
    )[0]  # fmt: skip


def test_fetch_schema_after_a_failure_asks_again(stub):
    number = stub.register("trips-value", LONG)
    registry = connect(stub.url)
    stub.mode = Mode.FAILING
    refusal(lambda: registry.fetch_schema(number, "avro"))
    stub.mode = Mode.FINE
    assert registry.fetch_schema(number, "avro").text == LONG


def test_fetch_latest_asks_each_time(stub):
    registry = connect(stub.url)
    first = stub.register("trips-value", LONG)
    assert registry.fetch_latest("trips-value", "avro") == RegisteredSchema(
        first, "AVRO", LONG, (), "trips-value", 1
    )
    second = stub.register("trips-value", '"string"')
    assert registry.fetch_latest("trips-value", "avro")[:3] == (second, "AVRO", '"string"')
    stub.delete("trips-value", 2)
    assert registry.fetch_latest("trips-value", "avro").version == 1


def test_fetch_latest_of_a_subject_with_every_character_finds_it(stub):
    subject = ":.ctx:a/b c?d=é&%-value"
    number = stub.register(subject, LONG)
    assert connect(stub.url).fetch_latest(subject, "avro").key == number


def test_fetch_schema_by_guid_finds_what_the_id_does(stub):
    number = stub.register("trips-value", LONG)
    guid = uuid.UUID(stub.guid(number)).bytes
    found = connect(stub.url).fetch_schema(guid, "avro")
    assert found == RegisteredSchema(guid, "AVRO", LONG)
    assert stub.count(f"/schemas/guids/{stub.guid(number)}") == 1


def test_fetch_schema_passes_on_a_subject_only_for_its_context(stub):
    number = stub.register("trips-value", LONG)
    stub.register(":.other:trips-value", LONG)
    registry = connect(stub.url)
    registry.fetch_schema(number, "avro", "trips-value")
    registry.fetch_schema(number, "avro", ":.other:trips-value")
    assert list(stub.requests) == [
        f"/schemas/ids/{number}",
        f"/schemas/ids/{number}?subject=%3A.other%3Atrips-value",
    ]


def test_an_id_names_another_schema_in_another_context(stub):
    text = '{"type": "string"}'
    number = stub.register(":.orders:trips-value", LONG)
    assert stub.register(":.keys:trips-key", text) == number
    latest = connect(stub.url).fetch_latest(":.orders:trips-value", "avro")
    known = {("avro", ":.orders:", number): latest}
    registry = SchemaRegistry({"url": stub.url, **QUICK}, known)
    assert registry.fetch_schema(number, "avro", ":.orders:trips-value") == latest
    assert registry.fetch_schema(number, "avro", ":.orders:other-value") == latest
    for subject in (":.keys:trips-key", ":.keys:trips-key"):
        assert registry.fetch_schema(number, "avro", subject).text == text
    assert "id 1" in refusal(lambda: registry.fetch_schema(number, "avro", "trips-key"))[0]
    assert "id 1" in refusal(lambda: registry.fetch_schema(number, "avro", ":.:trips-key"))[0]


def test_a_key_is_read_by_its_own_contexts_schema_beside_a_value_with_the_same_id(stub):
    reader = stub.register(":.orders:t-value", LONG)
    writer = stub.register(":.keys:t-key", '"string"')
    assert reader == writer
    given = {
        "schemaRegistry.url": stub.url,
        "valueFormat": "avro",
        "keyFormat": "avro",
        "keyReaderSchema": '"string"',
        "valueSubject": ":.orders:t-value",
        "keySubject": ":.keys:t-key",
    }
    fixed = pin_reader_schemas(load_schemas(build_options(**given)), {})
    source = pickle.loads(pickle.dumps(fixed)).source
    assert source.fetch_schema(writer, "avro", fixed.key_rules.subject).text == '"string"'
    assert source.fetch_schema(reader, "avro", fixed.value_rules.subject).text == LONG


def test_fetch_schema_brings_references_in_the_order_in_which_they_are_needed(stub):
    stub.register("c-value", '{"type": "enum", "name": "C", "symbols": ["x"]}')
    to_c = Reference("C", "c-value", 1)
    fields = '"fields": [{"name": "c", "type": "C"}]'
    stub.register("b-value", f'{{"type": "record", "name": "B", {fields}}}', references=[to_c])
    number = stub.register("a-value", '["B", "C"]', references=[Reference("B", "b-value", 1), to_c])
    # A version that was deleted is still what a schema refers to.
    stub.delete("c-value", 1)
    for found in (
        connect(stub.url).fetch_schema(number, "avro"),
        connect(stub.url).fetch_latest("a-value", "avro"),
    ):
        assert [each.name for each in found.references] == ["C", "B"]
        assert found.references[0].text == '{"type": "enum", "name": "C", "symbols": ["x"]}'
    assert stub.count("/subjects/c-value/versions/1") <= 2


def test_fetch_schema_that_refers_to_itself_ends(stub):
    number = stub.register("a-value", '"A"', references=[Reference("A", "a-value", 1)])
    assert connect(stub.url).fetch_schema(number, "avro").references == (
        SchemaReference("A", '"A"'),
    )


def test_fetch_schema_that_lacks_a_referenced_version_names_it(stub):
    number = stub.register("a-value", '"B"', references=[Reference("B", "b-value", 7)])
    message, _ = refusal(lambda: connect(stub.url).fetch_schema(number, "avro"))
    assert "cannot get version 7 of subject 'b-value'" in message


def test_fetch_schema_for_protobuf_asks_for_descriptors_everywhere(stub):
    stub.register("inner", "message B {}", "PROTOBUF", serialized=b"\x0a\x01b")
    number = stub.register(
        "outer",
        "message A {}",
        "PROTOBUF",
        [Reference("b.proto", "inner", 1)],
        serialized=b"\x0a\x01a",
    )
    found = connect(stub.url).fetch_schema(number, "protobuf")
    assert found.type == "PROTOBUF"
    assert base64.b64decode(found.text) == b"\x0a\x01a"
    (reference,) = found.references
    assert (reference.name, base64.b64decode(reference.text)) == ("b.proto", b"\x0a\x01b")


def test_fetch_schema_as_two_formats_gives_each_its_text(stub):
    number = stub.register("outer", "message A {}", "PROTOBUF", serialized=b"\x0a\x01a")
    registry = connect(stub.url)
    assert registry.fetch_schema(number, "avro").text == "message A {}"
    assert registry.fetch_schema(number, "protobuf").text == base64.b64encode(b"\x0a\x01a").decode()
    assert registry.fetch_latest("outer", "avro").text == "message A {}"


def test_fetch_schema_from_a_registry_without_descriptors_says_what_to_do(stub):
    number = stub.register("outer", "message A {}", "PROTOBUF")
    message, _ = refusal(lambda: connect(stub.url).fetch_schema(number, "protobuf"))
    assert "it sent .proto text, although it was asked for format=serialized" in message
    assert "set 'valueSchema' or 'keySchema' to a descriptor set" in message


def test_fetch_schema_of_another_type_says_its_type(stub):
    number = stub.register("json-value", "{}", "JSON")
    assert connect(stub.url).fetch_schema(number, "avro").type == "JSON"


# -- what goes wrong -------------------------------------------------------------------------------

ANSWERS = {
    Mode.FAILING: ("it answered 500 (Error in the backend data store)", "registry's own log"),
    Mode.FORBIDDEN: ("it answered 403 (User is denied", "let this login read the schema"),
    Mode.ELSEWHERE: (
        "it answered 404 (HTTP 404 Not Found)",
        "Confluent's registry would not answer so",
    ),
    Mode.HANGING: ("it did not answer in time", "'schemaRegistry.timeout'"),
    Mode.DRIPPING: ("no answer was complete in 2 s", "'schemaRegistry.timeout'"),
    Mode.GONE: ("disconnected", "check option 'schemaRegistry.url'"),
    Mode.BROKEN: ("its answer is not JSON", "Confluent's registry would not answer so"),
    Mode.FOREIGN: (
        "its answer is JSON of another form",
        "Confluent's registry would not answer so",
    ),
    Mode.MOVED: (
        "it answered 307 (Moved), and points to https://[hidden]@new.example:8081",
        "set option 'schemaRegistry.url' to the registry's own address",
    ),
    Mode.REFLECTING: ("it answered 401", "'schemaRegistry.basic.auth.user.info'"),
}


def test_every_mode_of_the_stub_is_tried():
    assert {*ANSWERS} == {*Mode} - {Mode.FINE, Mode.SLOW, Mode.BUSY}


@pytest.mark.parametrize("mode", ANSWERS, ids=lambda mode: mode.name)
def test_failure_of_the_registry_names_address_question_answer_and_step_in_time(stub, mode):
    number = stub.register("trips-value", LONG)
    stub.mode, stub.delay_s = mode, 0.1
    is_late = mode in (Mode.HANGING, Mode.DRIPPING)
    registry = connect(stub.url, **({"timeout": "1", "max.retries": "0"} if is_late else {}))
    answer, step = ANSWERS[mode]
    for wanted, fetch in (
        (f"the schema with id {number}", lambda: registry.fetch_schema(number, "avro")),
        (
            "the latest version of subject 'trips-value'",
            lambda: registry.fetch_latest("trips-value", "avro"),
        ),
    ):
        message, seconds = refusal(fetch)
        assert message.startswith(f"cannot get {wanted} from the schema registry at {stub.url}: ")
        problem, _, advice = message.partition("; next step: ")
        assert answer in problem
        assert step in advice
        # The limit is 2 s for an answer that is late; more is what else this machine does.
        assert seconds < 10


def test_registry_that_asks_to_wait_is_waited_for(stub):
    number = stub.register("trips-value", LONG)
    stub.mode, stub.delay_s = Mode.BUSY, 1.0
    began = time.monotonic()
    assert connect(stub.url).fetch_schema(number, "avro").text == LONG
    assert 1.0 <= time.monotonic() - began < 4.0


@pytest.mark.parametrize("retries", ["0", "1"])
def test_registry_that_asks_to_wait_too_long_is_an_error_that_says_so(stub, retries):
    stub.mode, stub.delay_s = Mode.BUSY, 3600
    registry = connect(stub.url, **{"max.retries": retries, "timeout": "1"})
    if retries == "1":
        number = stub.register("trips-value", LONG)
        assert registry.fetch_schema(number, "avro").text == LONG
        return
    message, seconds = refusal(lambda: registry.fetch_schema(1, "avro"))
    assert "it answered 429 (Too many), and asks to wait 3600 s; next step: wait as long" in message
    assert seconds < 3


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30.0,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:27:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            0.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(given, seconds):
    assert read_retry_after(given) == seconds


def test_slow_registry_is_waited_for(stub):
    number = stub.register("trips-value", LONG)
    stub.mode, stub.delay_s = Mode.SLOW, 0.15
    assert connect(stub.url).fetch_schema(number, "avro").text == LONG


def test_failing_registry_is_tried_again_as_often_as_the_options_say(stub):
    stub.mode = Mode.FAILING
    refusal(lambda: connect(stub.url, **{"max.retries": "3"}).fetch_schema(1, "avro"))
    assert stub.count("/schemas/ids/1") == 4
    refusal(lambda: connect(stub.url, **{"max.retries": "0"}).fetch_schema(2, "avro"))
    assert stub.count("/schemas/ids/2") == 1


def test_registry_that_recovers_between_tries_answers(stub):
    number = stub.register("trips-value", LONG)
    stub.mode = Mode.GONE
    settings = {"max.retries": "9", "retries.wait.ms": "50", "retries.max.wait.ms": "50"}
    back = threading.Timer(0.05, lambda: setattr(stub, "mode", Mode.FINE))
    back.start()
    assert connect(stub.url, **settings).fetch_schema(number, "avro").text == LONG


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({}, 1 + 3 * 10 + 0.5 + 1.0),
        ({"timeout": "2"}, 1 + 3 * 2 + 0.5 + 1.0),
        ({"max.retries": "0"}, 1 + 10),
        ({"max.retries": "4"}, 1 + 5 * 10 + 0.5 + 1.0 + 2.0 + 2.0),
        ({"retries.wait.ms": "0"}, 1 + 3 * 10),
        ({"url": "http://a,http://b"}, 1 + 2 * (3 * 10 + 0.5 + 1.0)),
    ],
)
def test_limit_of_a_request_is_its_tries_its_pauses_and_a_second(more, seconds):
    assert request_limit_s({"url": "http://a", **more}) == pytest.approx(seconds)


def test_client_without_settings_waits_no_longer_than_the_documents_say(monkeypatch):
    given = []

    class Recorder:
        def __init__(self, config):
            given.append(config)

        def close(self):
            pass

    monkeypatch.setattr("confluent_kafka.schema_registry.SchemaRegistryClient", Recorder)
    module._Client({"url": "http://a"}).close()
    module._Client({"url": "http://a", "timeout": "2.5", "max.retries": "7"}).close()
    # Without help, the client waits forever.
    limits = {"retries.wait.ms": 500, "retries.max.wait.ms": 2000}
    assert given == [
        {"url": "http://a", "timeout": 10.0, "max.retries": 2, **limits},
        {"url": "http://a", "timeout": 2.5, "max.retries": 7, **limits},
    ]


def test_unknown_id_names_it_and_what_may_be_wrong(stub):
    message, _ = refusal(lambda: connect(stub.url).fetch_schema(99, "avro"))
    assert "cannot get the schema with id 99" in message
    assert "it answered 404 (Schema 99 not found)" in message
    assert "'valueFraming' or 'keyFraming'" in message


@pytest.mark.parametrize("number", [-1, 0, 2**31 - 1, 2**32])
def test_id_that_cannot_be_is_unknown(stub, number):
    assert "404" in refusal(lambda: connect(stub.url).fetch_schema(number, "avro"))[0]


def test_unknown_subject_names_it_and_the_option(stub):
    message, _ = refusal(lambda: connect(stub.url).fetch_latest("other-value", "avro"))
    assert "it answered 404 (Subject 'other-value' not found)" in message
    assert "check options 'valueSubject' and 'keySubject'" in message


def test_refused_connection_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    message, _ = refusal(lambda: connect(f"http://127.0.0.1:{port}").fetch_schema(1, "avro"))
    assert f"at http://127.0.0.1:{port}: the connection was refused" in message
    assert "that the registry runs" in message


def test_unknown_host_is_said_to_be_unknown():
    message, _ = refusal(lambda: connect("http://registry.invalid:1").fetch_schema(1, "avro"))
    assert "its name is unknown" in message


def test_second_address_is_asked_when_the_first_is_gone(stub):
    number = stub.register("trips-value", LONG)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    addresses = f"http://127.0.0.1:{port},{stub.url}"
    assert connect(addresses).fetch_schema(number, "avro").text == LONG


# -- logins, secrets and encryption ----------------------------------------------------------------

LOGIN = {"basic.auth.user.info": "reader:hunter2"}
TOKEN = {
    "bearer.auth.credentials.source": "STATIC_TOKEN",
    "bearer.auth.token": "hunter2.token",
    "bearer.auth.logical.cluster": "",
}


@pytest.mark.parametrize("wrong", [{}, {"basic.auth.user.info": "reader:other"}, TOKEN])
def test_login_is_checked_and_passed_on(stub, wrong):
    number = stub.register("trips-value", LONG)
    stub.user_info = "reader:hunter2"
    assert connect(stub.url, **LOGIN).fetch_schema(number, "avro").text == LONG
    message, _ = refusal(lambda: connect(stub.url, **wrong).fetch_schema(number, "avro"))
    assert "it answered 401 (Unauthorized)" in message


@pytest.mark.parametrize("wrong", [{}, {**TOKEN, "bearer.auth.token": "other"}, LOGIN])
def test_token_is_checked_and_passed_on(stub, wrong):
    number = stub.register("trips-value", LONG)
    stub.token = "hunter2.token"
    assert connect(stub.url, **TOKEN).fetch_schema(number, "avro").text == LONG
    message, _ = refusal(lambda: connect(stub.url, **wrong).fetch_schema(number, "avro"))
    assert "it answered 401 (Unauthorized)" in message


class TokenEndpoint(BaseHTTPRequestHandler):
    """Gives everybody the token that the registry asks for."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"access_token": "hunter2.token", "token_type": "Bearer", "expires_in": 3600}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_):
        pass


WITHOUT_OAUTH = """
import sys
from pyspark_timestream.kafka.registry import SchemaRegistry

url, number, token_url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
oauth = "authlib.integrations.httpx_client"
token = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.logical.cluster": ""}
settings = {"url": url, **token, "bearer.auth.token": "hunter2.token"}
assert SchemaRegistry(settings).fetch_schema(number, "avro").key == number
assert oauth not in sys.modules and "joserfc" not in sys.modules
login = {
    "bearer.auth.credentials.source": "OAUTHBEARER",
    "bearer.auth.client.id": "reader",
    "bearer.auth.client.secret": "hunter2",
    "bearer.auth.scope": "schemas",
    "bearer.auth.issuer.endpoint.url": token_url,
    "bearer.auth.logical.cluster": "lsrc-1",
    "bearer.auth.identity.pool.id": "pool-1",
}
assert SchemaRegistry({"url": url, **login}).fetch_schema(number, "avro").key == number
assert oauth in sys.modules and "joserfc" in sys.modules
"""


def test_a_login_by_oauth_reads_the_registry_and_nobody_else_imports_it(stub):
    number = stub.register("trips-value", LONG)
    stub.token = "hunter2.token"
    with HTTPServer(("127.0.0.1", 0), TokenEndpoint) as tokens:
        threading.Thread(target=tokens.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{tokens.server_port}/token"
        run = [sys.executable, "-c", WITHOUT_OAUTH, stub.url, str(number), address]
        subprocess.run(run, check=True, timeout=60)
        tokens.shutdown()


def test_a_client_that_cannot_be_imported_without_oauth_is_imported_with_it(stub, monkeypatch):
    @contextmanager
    def deferred():
        raise TypeError("a class of OAuth is a base of another one")
        yield

    monkeypatch.setattr(module, "_defer_oauth", deferred)
    number = stub.register("trips-value", LONG)
    assert connect(stub.url).fetch_schema(number, "avro").text == LONG


@pytest.mark.parametrize("given", [LOGIN, TOKEN, {**LOGIN, "ssl.key.password": "hunter2"}])
def test_no_secret_is_in_a_message_a_repr_or_the_log(stub, given, caplog):
    caplog.set_level(logging.DEBUG)
    secrets = ("hunter2", base64.b64encode(b"reader:hunter2").decode())
    found = []
    for mode in {*Mode} - {Mode.DRIPPING, Mode.HANGING}:
        stub.mode = mode
        settings = {key: text for key, text in given.items() if key != "ssl.key.password"}
        registry = connect(stub.url, **settings)
        found.append(refusal(lambda registry=registry: registry.fetch_schema(99, "avro"))[0])
        found.append(f"{registry!r} {registry}")
    with pytest.raises(OptionError) as refused:
        connect(stub.url, **given, **{"ssl.ca.location": "/absent/hunter2.pem"}).fetch_latest(
            "t", "avro"
        )
    found.append(str(refused.value).replace("/absent/hunter2.pem", ""))
    with pytest.raises(OptionError) as refused:
        connect(stub.url, **given, **{"bearer.auth.token.x": "hunter2"}).fetch_latest("t", "avro")
    found.append(str(refused.value))
    assert any("Refused: " in text and "[hidden]" in text for text in found)
    for text in [*found, caplog.text]:
        assert not any(secret in text for secret in secrets), text


def test_wrong_file_is_named_when_the_settings_are_checked(stub):
    with pytest.raises(OptionError) as refused:
        connect(stub.url, **{"ssl.key.location": "/absent"}).fetch_latest("t", "avro")
    assert str(refused.value).startswith(
        "option 'schemaRegistry.ssl.key.location': cannot read '/absent' (No such file"
    )
    assert not stub.requests


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.certificate.location"])
def test_missing_file_of_a_certificate_is_named_with_its_option(stub, key):
    with pytest.raises(OptionError) as refused:
        connect(stub.url, **{key: "/data/absent.pem"}).fetch_latest("t", "avro")
    assert refused.value.name == f"schemaRegistry.{key}"
    assert "'/data/absent.pem'" in str(refused.value)


def test_file_that_is_no_certificate_is_said_by_the_client(stub, tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text("no certificate")
    with pytest.raises(OptionError, match="its client says"):
        connect(stub.url, **{"ssl.ca.location": str(path)}).fetch_latest("t", "avro")


@pytest.mark.parametrize("lost", ["httpx2", "authlib.integrations.httpx_client", "cachetools"])
def test_missing_library_gives_the_pip_line(monkeypatch, lost):
    for name in list(sys.modules):
        if name.startswith("confluent_kafka.schema_registry"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lost, None)
    if lost == "httpx2":
        monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra) as refused:
        connect("http://127.0.0.1:1").fetch_latest("t", "avro")
    message = str(refused.value)
    assert message.startswith("a schema registry needs ")
    assert "pip install 'pyspark-timestream[registry]'" in message


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with an authority, and a server and a client that it vouches for."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    place = tmp_path_factory.mktemp("certificates")
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    now = datetime.now(UTC)
    for name in ("authority", "server", "client"):
        is_authority = name == "authority"
        key = authority_key if is_authority else ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(address, critical=False)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=is_authority,
                    crl_sign=is_authority,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(authority_key, hashes.SHA256())
        )
        (place / f"{name}.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
        (place / f"{name}.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"hunter2")
                if name == "client"
                else serialization.NoEncryption(),
            )
        )
    return place


def test_certificate_of_a_trusted_authority_is_needed(certificates):
    tls = {"certfile": certificates / "server.pem", "keyfile": certificates / "server.key"}
    trust = {"ssl.ca.location": str(certificates / "authority.pem")}
    with serve_schema_registry(tls) as stub:
        number = stub.register("trips-value", LONG)
        message, _ = refusal(lambda: connect(stub.url).fetch_schema(number, "avro"))
        assert "the encrypted connection failed" in message
        assert "CERTIFICATE_VERIFY_FAILED" in message
        assert "'schemaRegistry.ssl.ca.location'" in message
        assert connect(stub.url, **trust).fetch_schema(number, "avro").text == LONG
        # The certificate is of the address, and not of the name.
        named = stub.url.replace("127.0.0.1", "localhost")
        message, _ = refusal(lambda: connect(named, **trust).fetch_schema(number, "avro"))
        assert "the encrypted connection failed" in message


def test_registry_that_wants_a_certificate_gets_it(certificates):
    authority = str(certificates / "authority.pem")
    tls = {"certfile": certificates / "server.pem", "keyfile": certificates / "server.key"}
    own = {
        "ssl.certificate.location": str(certificates / "client.pem"),
        "ssl.key.location": str(certificates / "client.key"),
        "ssl.key.password": "hunter2",
    }
    with serve_schema_registry({**tls, "cafile": authority}) as stub:
        number = stub.register("trips-value", LONG)
        trusting = {"ssl.ca.location": authority}
        assert connect(stub.url, **trusting, **own).fetch_schema(number, "avro").text == LONG
        message, _ = refusal(lambda: connect(stub.url, **trusting).fetch_schema(number, "avro"))
        assert "'schemaRegistry.ssl.certificate.location'" in message
        wrong = {**own, "ssl.key.password": "hunter3"}
        with pytest.raises(OptionError) as refused:
            connect(stub.url, **trusting, **wrong).fetch_latest("t", "avro")
        assert "hunter3" not in str(refused.value)


def test_plain_server_under_https_is_a_failed_encryption(stub):
    message, _ = refusal(
        lambda: connect(stub.url.replace("http:", "https:")).fetch_schema(1, "avro")
    )
    assert "the encrypted connection failed" in message
