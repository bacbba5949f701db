"""A bucket of a local S3 server, as a fixture."""

import pathlib
import subprocess
import sys
import urllib.request
from dataclasses import dataclass

import pytest

SERVER = pathlib.Path(__file__).with_name("s3_server.py")


@dataclass(frozen=True)
class Bucket:
    name: str
    endpoint: str

    @property
    def options(self):
        return {
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "s3cret-example",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def uri(self, prefix):
        return f"s3://{self.name}/{prefix}"


@pytest.fixture(scope="session")
def bucket():
    """An empty bucket; its contents go with the server."""
    line = [sys.executable, "-W", "ignore", str(SERVER)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        try:
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            for name in ("store", "careless"):
                made = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
                with urllib.request.urlopen(made, timeout=60):
                    pass
            yield Bucket("store", endpoint)
        finally:
            server.kill()
