"""OAuth by librdkafka's OIDC, with both consumers: options only, no code of ours."""

import base64
import queue
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from timestream.builders import options

from pyspark_timestream.kafka.client import range_reader
from pyspark_timestream.kafka.client.native_consumer import NativeConsumer, load_native_reader
from pyspark_timestream.kafka.client.range_reader import RangeReader

Asked = queue.Queue[tuple[str, str]]


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Asked]]:
    """The URL of a token endpoint that gives none, and who has asked it: authorization and form."""
    asked: Asked = queue.Queue()

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.put((self.headers["Authorization"], form))
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refuses)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("native", [True, False])
def test_a_token_is_asked_for_where_the_options_say(
    native: bool, endpoint: tuple[str, Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    if native and load_native_reader() is None:
        pytest.skip("the native reader is not built here, or not wanted")
    if not native:
        monkeypatch.setattr(range_reader, "load_native_reader", lambda: None)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    url, asked = endpoint
    oidc = {
        "method": "oidc",
        "client.id": "timestream",
        "client.secret": "hush",
        "scope": "read",
        "token.endpoint.url": url,
    }
    secured = {
        "kafka.bootstrap.servers": "127.0.0.1:1",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        **{f"kafka.sasl.oauthbearer.{name}": value for name, value in oidc.items()},
    }
    reader = RangeReader(options(**secured), "group")
    assert isinstance(reader._consumer._client.direct, NativeConsumer) == native
    authorization, form = asked.get(timeout=100)
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"timestream:hush"
    assert "grant_type=client_credentials" in form
    assert "scope=read" in form
    reader.close()
