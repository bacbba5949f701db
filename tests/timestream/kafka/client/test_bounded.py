"""Calls of a client library that does not return: given up in time, and without a trace."""

import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.kafka.client import bounded
from pyspark_timestream.kafka.client.bounded import (
    ABANDONED,
    UNCLOSED,
    BoundedClient,
    CallAbandoned,
    HangingCalls,
    call_bounded,
)
from pyspark_timestream.kafka.client.errors import FailureKind, classify_failure


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls and closes are given up soon."""
    monkeypatch.setattr(bounded, "GRACE_S", 0.05)
    monkeypatch.setattr(bounded, "_CLOSE_TIMEOUT_S", 0.1)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Limit the calls and the closes that may hang, each separately, from none on."""

    def set_limit(count: int) -> None:
        for hanging in (ABANDONED, UNCLOSED):
            monkeypatch.setattr(hanging, "limit", count)
            monkeypatch.setattr(hanging, "calls", set())
            monkeypatch.setattr(hanging, "parked", [])

    return set_limit


@pytest.fixture
def gate():
    """Opens in the end, so that no thread stays behind."""
    made = threading.Event()
    yield made
    made.set()


class Hanging:
    """A client; its `stuck` never returns unasked."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.calls = gate, 0

    def stuck(self, timeout: float = 0) -> str:
        self.calls += 1
        self.gate.wait()
        return "late"

    def sound(self, text: str, timeout: float = 0) -> str:
        self.calls += 1
        return text

    def commit_transaction(self, *timeout: float) -> tuple[float, ...]:
        return timeout


def test_a_call_that_does_not_return_is_given_up_in_time_by_its_name(gate) -> None:
    began_s = time.monotonic()
    with pytest.raises(CallAbandoned, match=r"librdkafka\) has not returned from stuck in 0 s"):
        BoundedClient(Hanging(gate)).stuck(timeout=0.1)
    assert 0.1 < time.monotonic() - began_s < 5


def test_it_counts_as_a_time_out_that_may_pass() -> None:
    error = CallAbandoned("commit", 20)
    assert isinstance(error, KafkaException)
    assert error.args[0].code() == KafkaError._TIMED_OUT
    assert classify_failure(error) is FailureKind.ABANDONED
    assert FailureKind.ABANDONED.may_pass


def test_a_client_with_an_abandoned_call_takes_no_other_and_keeps_one_thread(gate) -> None:
    client = Hanging(gate)
    guarded = BoundedClient(client)
    with pytest.raises(CallAbandoned):
        guarded.stuck()
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(CallAbandoned, match="from a call before sound"):
            guarded.sound("x")
    assert (client.calls, threading.active_count()) == (1, before)
    guarded.close()


def test_results_and_errors_of_calls_are_those_of_the_client(gate) -> None:
    guarded = BoundedClient(Hanging(gate))
    assert guarded.sound("x", timeout=3) == "x"
    assert guarded.commit_transaction(timeout=3) == (3,)
    with pytest.raises(TypeError):
        guarded.sound()
    assert guarded.run(lambda client: client.sound("y"), 0, "sound") == "y"


def test_calls_reuse_their_threads() -> None:
    names = {call_bounded(threading.get_ident, 5, "ident") for _ in range(50)}
    assert len(names) <= 2


def test_a_request_without_an_answer_is_given_up(gate) -> None:
    guarded, answer = BoundedClient(Hanging(gate)), Future[Any]()
    with pytest.raises(CallAbandoned, match="list_offsets"):
        guarded.wait(answer, 0.05, "list_offsets")
    assert guarded.is_abandoned


def test_abandoned_calls_of_a_process_are_bounded_and_counted_off_when_they_return(gate) -> None:
    hanging = HangingCalls()
    hanging.limit = 3
    for _ in range(3):
        with pytest.raises(CallAbandoned):
            call_bounded(gate.wait, 0.05, "stuck", hanging)
    with pytest.raises(CallAbandoned, match="so sound is not made"):
        call_bounded(lambda: 1, 5, "sound", hanging)
    gate.set()
    deadline = time.monotonic() + 20
    while hanging.calls:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert call_bounded(lambda: 1, 5, "sound", hanging) == 1


def test_a_stopped_process_does_not_lose_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a part of the limit passes while the machine sleeps, so the answer still counts."""
    waited: list[float] = []

    class Sleepy:
        def __init__(self) -> None:
            self.found: Any = None

        def put(self, found: Any) -> None:
            self.found = found

        def get(self, timeout: float | None = None) -> Any:
            waited.append(timeout or 0)
            if len(waited) < 5 or self.found is None:
                time.sleep(0.01)
                raise bounded.Empty
            return self.found

    class SleepyCall(bounded._Call):
        def __init__(self, step: Any) -> None:
            super().__init__(step)
            self.answer = Sleepy()  # type: ignore[assignment]

    monkeypatch.setattr(bounded, "_Call", SleepyCall)
    assert call_bounded(lambda: "there", 100, "sound") == "there"
    assert set(waited) == {1.0}


def test_closes_that_hang_stop_no_calls(gate, limit) -> None:
    limit(2)
    for _ in range(2):
        BoundedClient(Closing(gate)).close()
    assert len(UNCLOSED.calls) == 2
    assert BoundedClient(Hanging(gate)).sound("x", timeout=5) == "x"


def test_calls_that_hang_stop_no_closes(gate, limit) -> None:
    limit(2)
    for _ in range(2):
        with pytest.raises(CallAbandoned):
            BoundedClient(Hanging(gate)).stuck()
    gate_is_open = threading.Event()
    gate_is_open.set()
    closing = Closing(gate_is_open)
    client = BoundedClient(closing)
    with pytest.raises(CallAbandoned, match="so sound is not made: restart the Python process"):
        client.sound()
    client.close()
    assert closing.closed == [1]


class Closing:
    """A client that waits for a gate in `close`."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.closed = gate, list[int]()

    def sound(self) -> None:
        """Not called."""

    def close(self) -> None:
        self.gate.wait()
        self.closed.append(1)


class Heavy:
    """A client that notes the thread which frees it, and then hangs."""

    def __init__(self, gate: threading.Event, freed_in: list[int]) -> None:
        self.gate, self.freed_in = gate, freed_in

    def sound(self, timeout: float = 0) -> int:
        return 1

    def __del__(self) -> None:
        self.freed_in.append(threading.get_ident())
        self.gate.wait(20)


def test_a_client_whose_request_has_no_answer_is_not_freed_by_who_waits(gate) -> None:
    freed_in: list[int] = []
    guarded = BoundedClient(Heavy(gate, freed_in))
    with pytest.raises(CallAbandoned, match="list_offsets"):
        guarded.wait(Future[Any](), 0.05, "list_offsets")
    assert guarded.is_abandoned
    assert len(freed_in) == 1
    assert threading.get_ident() not in freed_in


def test_a_client_that_may_not_be_closed_is_kept_for_ever(
    gate, limit, caplog: pytest.LogCaptureFixture
) -> None:
    freed_in = list[int]()
    limit(0)
    guarded = BoundedClient(Heavy(gate, freed_in))
    with pytest.raises(CallAbandoned, match="restart the Python process"):
        guarded.sound()
    assert (freed_in, guarded.is_abandoned) == ([], False)
    guarded.close()
    assert (freed_in, len(UNCLOSED.parked)) == ([], 1)
    assert "is not closed" in caplog.text
    gate.set()


def test_a_client_given_up_by_another_thread_just_now_takes_no_call(gate) -> None:
    guarded = BoundedClient(Hanging(gate))
    guarded.direct = None  # and is_abandoned was read before
    with pytest.raises(CallAbandoned, match="from a call before sound"):
        guarded.sound("x")


ENDING = """
import threading, time
from pyspark_timestream.kafka.client import bounded
bounded.GRACE_S = 0.05
class Client:
    def stuck(self): threading.Event().wait()
    def __del__(self): time.sleep(60)
client = bounded.BoundedClient(Client())
try:
    client.stuck()
except bounded.CallAbandoned as error:
    print(error.args[0].str())
client.close()
"""


def test_a_process_with_an_abandoned_call_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=30, check=True
    )
    assert "has not returned from stuck" in done.stdout
    assert done.stderr == ""


def test_a_client_that_hangs_when_it_is_freed_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, gate
) -> None:
    class Heavy:
        def __del__(self) -> None:
            gate.wait()

    began_s = time.monotonic()
    BoundedClient(Heavy()).close()
    assert time.monotonic() - began_s < 5
    assert "left behind" in caplog.text
