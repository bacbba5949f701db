"""The proxy that spoils answers breaks nothing else."""

import socket
import threading

import pytest
from spoiling_proxy import spoiling_proxy


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("sent", "passed_on"), [(b"12345678", 12), (b"1234", 0), (b"", 0)])
def test_an_answer_that_breaks_off_is_not_passed_on(sent: bytes, passed_on: int) -> None:
    def answer() -> None:
        client, _ = broker.accept()
        with client:
            client.sendall(b"\0\0\0\x08" + sent)

    with socket.create_server(("127.0.0.1", 0)) as broker:
        thread = threading.Thread(target=answer)
        thread.start()
        with spoiling_proxy(f"127.0.0.1:{broker.getsockname()[1]}", bytes) as proxy:
            host, port = proxy.bootstrap.split(":")
            with (
                socket.create_connection((host, int(port))) as client,
                client.makefile("rb") as got,
            ):
                assert len(got.read()) == passed_on
        thread.join()


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_that_breaks_off_ends_its_connection_alone() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as broker,
        spoiling_proxy(f"127.0.0.1:{broker.getsockname()[1]}", bytes) as proxy,
    ):
        host, port = proxy.bootstrap.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"\0\0\0\x08" + b"1")
        upstream, _ = broker.accept()
        with upstream, upstream.makefile("rb") as got:
            assert got.read() == b""
