"""Calls of Kafka's client library, each with a limit of our own.

librdkafka 2.16 does not always keep the time-out that it is given: its issues 5456 and 5511 tell of
`send_offsets_to_transaction` that never returns after a broker has restarted. So a call runs in a
helper thread, and whoever waits for it gives up a few seconds after the time-out. The call is then
*abandoned*: its thread, a daemon, keeps the client until the call returns, and the client takes no
other calls. Such a process can still end.

A call costs 6 microseconds more. `produce` alone is called directly: it does not wait.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)

GRACE_S: Final = 10.0
"""How long a call may take beyond its time-out: no sound call does, even on a busy machine."""

_CLOSE_TIMEOUT_S: Final = 5.0
"""Longer than any close takes that does not deadlock."""

_WAIT_STEP_S: Final = 1.0
"""A process or machine that was stopped for an hour has used up one step, not the whole limit."""

_WITHOUT_NAMES: Final = frozenset(
    (
        "init_transactions",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    )
)
"""Methods of a producer that take their time-out by its position alone."""

_MAX_IDLE: Final = 8
_MAX_ABANDONED: Final = 64
"""Calls that may hang in one process, and closes too; above that it makes no further ones."""


class HangingCalls:
    """Pending calls of one kind, with a limit per process.

    Attributes:
        most: so many; above that no further ones are made.
        calls: those that have not returned.
        parked: calls that are not made, with their clients: freeing those might hang.
    """

    def __init__(self, most: int = _MAX_ABANDONED) -> None:
        self.most = most
        self.calls: set[_Call] = set()
        self.parked: list[Callable[[], object]] = []


class CallAbandoned(KafkaException):  # type: ignore[misc]
    """A call did not return in time: nothing is known of its effect, and its client is given up.

    Attributes:
        is_refused: it was not made, since too many others have not returned.
    """

    is_refused = False

    def __init__(self, name: str, limit_s: float, why: str | None = None) -> None:
        why = why or f"has not returned from {name} in {limit_s:.0f} s"
        super().__init__(
            KafkaError(KafkaError._TIMED_OUT, f"Kafka's client library (librdkafka) {why}")
        )


class _Call:
    """One call, from the thread that waits for it to the helper that makes it."""

    __slots__ = ("answer", "hanging", "is_done", "step")

    def __init__(self, step: Callable[[], Any]) -> None:
        self.step: Callable[[], Any] | None = step
        self.answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.is_done = False
        self.hanging: HangingCalls | None = None


class _Helper(threading.Thread):
    """A daemon thread that makes one call after the other."""

    def __init__(self) -> None:
        super().__init__(name="timestream-kafka-call", daemon=True)
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self.start()

    def run(self) -> None:
        is_kept = True
        while is_kept:
            call = self.calls.get()
            found: tuple[Any, BaseException | None]
            try:
                assert call.step is not None
                found = call.step(), None
            except BaseException as error:
                found = None, error
            # May free the client of an abandoned call, so before anybody counts on this thread.
            call.step = None
            with _LOCK:
                call.is_done = True
                if call.hanging is not None:
                    call.hanging.calls.discard(call)
                is_kept = len(_IDLE) < _MAX_IDLE
                if is_kept:
                    _IDLE.append(self)
            call.answer.put(found)
            del call, found


_IDLE: Final[list[_Helper]] = []
ABANDONED: Final = HangingCalls()
UNCLOSED: Final = HangingCalls()
"""Closes that hang: only their clients leak, so other calls go on."""
_LOCK: Final = threading.Lock()


def _begin_in_child() -> None:
    """Forget the parent's threads, of which a forked child has none."""
    _IDLE.clear()
    ABANDONED.calls.clear()
    UNCLOSED.calls.clear()
    _LOCK.release()


os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_begin_in_child
)


def call_bounded(
    step: Callable[[], T], limit_s: float, name: str, hanging: HangingCalls = ABANDONED
) -> T:
    """Call `step` in a helper thread, and wait at most `limit_s` for it.

    Args:
        step: makes the call; it may go on behind the caller's back.
        limit_s: seconds.
        name: of the call, for the message.
        hanging: the calls of its kind that have not returned, which bound it.

    Raises:
        CallAbandoned: it did not return.
    """
    if len(hanging.calls) >= hanging.most:
        why = f"has not returned from {hanging.most} calls of this process, so {name} is not made"
        error = CallAbandoned(name, limit_s, f"{why}: restart the Python process")
        error.is_refused = True
        raise error
    if sys.is_finalizing():
        # Daemon threads do not run any more.
        return step()
    try:
        helper = _IDLE.pop()
    except IndexError:
        try:
            helper = _Helper()
        except RuntimeError:
            # The interpreter is shutting down and starts no more threads.
            return step()
    call = _Call(step)
    # Only the helper keeps the client: nobody else is to free one that hangs.
    del step
    helper.calls.put(call)
    waited_s = 0.0
    while waited_s < limit_s:
        wait_s = min(_WAIT_STEP_S, limit_s - waited_s)
        try:
            return cast(T, _unpack(call.answer.get(timeout=wait_s)))
        except Empty:
            waited_s += wait_s
    with _LOCK:
        if not call.is_done:
            call.hanging = hanging
            hanging.calls.add(call)
            raise CallAbandoned(name, limit_s)
    return cast(T, _unpack(call.answer.get()))


def _unpack(answer: tuple[Any, BaseException | None]) -> Any:
    found, error = answer
    if error is not None:
        raise error
    return found


class BoundedClient:
    """A client of confluent-kafka; each method has a limit, its `timeout` and `GRACE_S`.

    Attributes:
        is_abandoned: a call has not returned. All further calls raise `CallAbandoned` at once.
        direct: the client itself, for `produce` alone; None after the last call.
        wrap: makes of each step, in the thread that waits for it, the one that the helper makes.

    Args:
        client: a `Producer`, `Consumer` or `AdminClient`, which nobody else keeps.
        grace_s: how long a call may take beyond its time-out, if not `GRACE_S`.
        close_s: how long a close may take.
        calls: calls of this process that hang.
        closes: closes that do.
    """

    def __init__(
        self,
        client: Any,
        grace_s: float | None = None,
        *,
        close_s: float = _CLOSE_TIMEOUT_S,
        calls: HangingCalls = ABANDONED,
        closes: HangingCalls = UNCLOSED,
    ) -> None:
        self.direct = client
        self._grace_s, self._close_s = grace_s, close_s
        self._calls, self._closes = calls, closes
        self.is_abandoned = False
        self.wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]] = lambda step: step

    @property
    def grace_s(self) -> float:
        """How long a call may take beyond its time-out."""
        return GRACE_S if self._grace_s is None else self._grace_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            timeout_s = named.get("timeout", named.get("request_timeout", 0.0))
            if name in _WITHOUT_NAMES and "timeout" in named:
                arguments = (*arguments, named.pop("timeout"))

            def step(client: Any) -> Any:
                return getattr(client, name)(*arguments, **named)

            return self.run(step, timeout_s, name)

        return call

    def run(self, step: Callable[[Any], T], timeout_s: float, name: str) -> T:
        """Call `step` with the client, for several calls at once.

        Raises:
            CallAbandoned: it did not return `GRACE_S` after `timeout_s`.
        """
        limit_s = timeout_s + self.grace_s
        # Read once, since other threads may give it up, and not kept here, where it may be freed.
        held = [self.direct]
        if held[0] is None:
            raise CallAbandoned(name, limit_s, f"has not returned from a call before {name}")
        try:
            whole = partial(self.wrap(step), held.pop())
            return cast(T, call_bounded(whole, limit_s, name, self._calls))
        except CallAbandoned as error:
            # What was not made does not keep the client, and it would be freed here.
            if not error.is_refused:
                self._abandon()
            raise

    def wait(self, answer: "Future[T]", timeout_s: float, name: str) -> T:
        """Return the answer to a request of an `AdminClient` that has this time-out.

        Raises:
            CallAbandoned: it did not come `GRACE_S` after `timeout_s`.
        """
        try:
            return answer.result(timeout=timeout_s + self.grace_s)
        except TimeoutError:
            self.close()
            raise CallAbandoned(name, timeout_s + self.grace_s) from None

    def close(self) -> None:
        """Close a consumer, and free any client; what takes longer than 5 s is left behind."""
        if self.is_abandoned:
            return
        held = [self.direct]
        self._abandon()

        def free() -> None:
            client = held.pop()
            # A producer's own close would wait for what it has not sent.
            if hasattr(client, "close") and not hasattr(client, "produce"):
                client.close()

        close_with_timeout(free, self._close_s, self._closes)

    def _abandon(self) -> None:
        self.is_abandoned = True
        self.direct = None


def close_with_timeout(
    close: Callable[[], object],
    timeout_s: float = _CLOSE_TIMEOUT_S,
    hanging: HangingCalls = UNCLOSED,
) -> None:
    """Call `close` and wait at most `timeout_s` for it to return.

    librdkafka 2.16 may deadlock when it is closed just before it reports an offset that it cannot
    read (`rd_kafka_offset_reset_op_cb`). Then its threads and connections leak, rather than the
    task hanging.
    """
    try:
        call_bounded(close, timeout_s, "close", hanging)
    except CallAbandoned as error:
        if error.is_refused:
            hanging.parked.append(close)
        _LOG.warning(
            "a Kafka client %s: it is left behind",
            "is not closed, since too many of this process did not close"
            if error.is_refused
            else f"did not close in {timeout_s:.0f} s",
        )
