"""The choice of the integration tests' broker is never a guess."""

from __future__ import annotations

import pytest
from broker import NoBroker, broker


def refusal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_TIER", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoBroker) as refused, broker(say=lambda _: None):
        pass
    return str(refused.value)


def test_an_unknown_tier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, KAFKA_TIER="vm")
    assert said == "KAFKA_TIER is 'vm'; it may be container or process"


def test_a_tier_and_an_address_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, KAFKA_TIER="process", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert said.startswith("KAFKA_TIER and KAFKA_BOOTSTRAP_SERVERS are both set")


def test_the_container_tier_never_falls_back_to_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    said = refusal(monkeypatch, KAFKA_TIER="container", DOCKER_HOST="unix:///nowhere.sock")
    assert "container: no Docker engine answers" in said
    assert "process" not in said
