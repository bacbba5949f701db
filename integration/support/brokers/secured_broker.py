"""A broker that asks for a login on one port, and has a certificate of its own on another."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker import Broker, wait_until_ready
from kafka_process import KafkaProcess, free_port

USER, PASSWORD = "alice", "open sesame"
_STORE_PASSWORD = "changeit"


@dataclass(frozen=True)
class SecuredBroker:
    """The addresses of the broker, and how to use them.

    Attributes:
        open: without anything, to make topics.
        login: the address that asks for SASL PLAIN.
        tls: the address that encrypts.
        certificate: a PEM file to trust.
    """

    open: Broker
    login: str
    tls: str
    certificate: Path


@contextmanager
def secured_broker(place: Path) -> Iterator[SecuredBroker]:
    """A broker that is ready; `place` gets its certificate."""
    ports = plain, login, tls, controller = tuple(free_port() for _ in range(4))
    names = ("PLAINTEXT", "LOGIN", "TLS", "CONTROLLER")
    at = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    store, certificate = _certificate(place)
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    changes = {
        "listeners": ",".join(f"{name}://{where}" for name, where in at.items()),
        "advertised.listeners": ",".join(f"{name}://{at[name]}" for name in names[:3]),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,"
        "CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{jaas} user_{USER}="{PASSWORD}";',
        "ssl.keystore.location": str(store),
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": _STORE_PASSWORD,
    }
    node = KafkaProcess(changes, (plain, controller))
    try:
        node.start()
        wait_until_ready(node.bootstrap, node.failure)
        yield SecuredBroker(
            Broker(node.bootstrap, "process"),
            f"127.0.0.1:{login}",
            f"127.0.0.1:{tls}",
            certificate,
        )
    finally:
        node.close()


def _certificate(place: Path) -> tuple[Path, Path]:
    """A key store with a certificate for 127.0.0.1 that nobody signed, and the certificate."""
    store, certificate = place / "broker.p12", place / "broker.pem"
    common = ["-alias", "broker", "-keystore", str(store), "-storepass", _STORE_PASSWORD]
    made = ["-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", "-validity", "2"]
    named = ["-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1"]
    exported = ["-exportcert", "-rfc", "-file", str(certificate)]
    for arguments in ([*made, *common, *named], [*exported, *common]):
        subprocess.run(["keytool", *arguments], check=True, capture_output=True, timeout=60)
    return store, certificate
