"""What is done to nsqd in a run, by name on the command line."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of run.

    Attributes:
        name: of it.
        about: a line for users.
        end: what ends nsqd amid the load; None: it goes on to the end of the run.
        idle_end: what ends it again, so often, during the starts that follow.
        idle_ends: how often.
        pauses: how often it is stopped for a while, as by kill -STOP.
        memory: the values of --mem-queue-size to draw from.
        msg_timeout_s: after this a message without an answer comes again.
        sync_timeout_s: within this time, and that of a sync, due times are in a file.
        load_s_min: the load takes at least this time.
        hold_share, requeue_share: of the messages, what consumers do not answer, and requeue.
        defers_all: every publisher defers, as far as it can.
        faults: counts that must not be zero after a run of this kind.
        flags: of nsqd, beside those that are drawn.
        keeps_all: a kill may cost nothing that was acknowledged.
    """

    name: str
    about: str
    end: signal.Signals | None = signal.SIGTERM
    idle_end: signal.Signals | None = None
    idle_ends: int = 0
    pauses: int = 0
    memory: tuple[int, ...] = (0, 10, 1000, 10_000)
    msg_timeout_s: float = 60.0
    sync_timeout_s: float = 2.0
    load_s_min: float = 0.4
    hold_share: float = 0.02
    requeue_share: float = 0.02
    defers_all: bool = False
    faults: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    keeps_all: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether nsqd is never killed while it has clients."""
        return self.end is not signal.SIGKILL


_HELD: Final = ("in_flight_at_stop", "deferred_at_stop")
_CUT_OFF: Final = ("publishers_cut_off", "consumers_cut_off")

KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("stop", "SIGTERM, and a start", faults=(*_HELD, *_CUT_OFF, "waited_after_restart")),
        Kind(
            "kill",
            "SIGKILL: what /stats says is in memory and in flight may be lost",
            end=signal.SIGKILL,
            sync_timeout_s=0.1,
            memory=(0, 10_000),
            faults=(*_HELD, *_CUT_OFF, "may_lose"),
        ),
        Kind(
            "kill-log",
            "SIGKILL of an nsqd whose OK means that a message is safe: nothing may be lost",
            end=signal.SIGKILL,
            memory=(0, 10, 10_000),
            faults=(*_HELD, *_CUT_OFF),
            flags=("--storage=log", "--durability=always", "--state-interval=200ms"),
            keeps_all=True,
        ),
        Kind(
            "kill-in-start",
            "SIGTERM, then SIGKILL three times during the start",
            idle_end=signal.SIGKILL,
            idle_ends=3,
            faults=(*_HELD, "killed_in_start"),
        ),
        Kind(
            "pause",
            "SIGSTOP and SIGCONT, while messages time out",
            end=None,
            pauses=2,
            msg_timeout_s=1.0,
            faults=("paused", "timed_out"),
        ),
        Kind(
            "deferred",
            "nearly all messages are deferred; SIGTERM twice",
            idle_end=signal.SIGTERM,
            idle_ends=1,
            requeue_share=0.4,
            defers_all=True,
            faults=("deferred_at_stop", "waited_after_restart"),
        ),
        Kind(
            "requeue",
            "consumers requeue, and let messages time out; SIGTERM",
            msg_timeout_s=0.5,
            load_s_min=1.0,
            hold_share=0.1,
            requeue_share=0.2,
            faults=(*_HELD, "requeued", "timed_out"),
        ),
    )
}
