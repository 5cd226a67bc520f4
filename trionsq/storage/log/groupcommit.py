"""Whether a round waits for more messages before it is written. Pure; the caller has the clock.

While one round is written, others publish. If the next round is written at once, those who were
just answered publish behind it. So two groups of publishers take turns at the disk: a round has
half of the messages that it could have, and a publisher waits for two rounds. If the next round
waits a moment for those who were just answered, it has all. That helps when the same publishers
publish again, and delays everybody when they do not. A trial finds out: some rounds wait, some do
not, and what brings more messages a second goes on until the next trial.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GroupCommit"]

# A trial has so many pairs of turns, one without waiting and one with it, as disks have better
# moments. To wait may lose one pair.
_TRIAL_PAIRS: Final = 4
_MAX_LOST: Final = 1
# Rounds of a turn. Only the last ones count: the first are as the rounds before the turn.
_TURN_ROUNDS: Final = 48
_COUNTED_ROUNDS: Final = 32
# Rounds until the next trial; after one in vain twice as many as before.
_MIN_REST_ROUNDS: Final = 2048
_MAX_REST_ROUNDS: Final = 16_384
# To wait has to bring so much more: rates vary by themselves.
_GAIN: Final = 1.05
# A faster disk is not what publishers wait for.
_MIN_WRITE_S: Final = 0.0005
# A round waits for half the time of a write, within these limits; and as often again while
# messages come.
_MIN_WAIT_S: Final = 0.0005
_MAX_WAIT_S: Final = 0.004
_MAX_WAITS: Final = 4
# After such a pause, longer than any wait, what was measured says nothing.
_PAUSE_S: Final = 0.02


class GroupCommit:
    """Decides for all rounds of a node.

    Attributes:
        wait_s: how long the next round waits at most, if it does.
    """

    def __init__(self) -> None:
        self.wait_s = _MIN_WAIT_S
        self._waits = False
        self._waits_left = 0
        self._missing = 0
        self._rest_rounds = _MIN_REST_ROUNDS
        # Of the trial: whole pairs that are left, in the rest 0; pairs in which to wait was no
        # better; and messages a second of the last turn without waiting.
        self._pairs_left = _TRIAL_PAIRS
        self._lost = 0
        self._rate_at_once = 0.0
        # Of the turn, or the rest.
        self._rounds_left = _TURN_ROUNDS
        self._messages = 0
        self._began_s = 0.0
        self._ended_s = 0.0

    def __repr__(self) -> str:
        return f"<GroupCommit waits={self._waits} left={self._rounds_left}>"

    def end_round(self, messages: int, gathered: int, took_s: float, now_s: float) -> int:
        """Note a round that was written; return how many messages the next one waits for.

        Args:
            messages: of the round.
            gathered: since it began.
            took_s: to write it.
            now_s: the time, of a clock that only goes forward.
        """
        if not messages:
            return 0
        if now_s - self._ended_s > took_s + _PAUSE_S:
            self._restart(now_s)
        self._ended_s = now_s
        self._messages += messages
        self._rounds_left -= 1
        if self._rounds_left == _COUNTED_ROUNDS and self._pairs_left:
            self._messages, self._began_s = 0, now_s
        elif not self._rounds_left:
            self._end_turn(now_s)
        if not self._waits or took_s < _MIN_WRITE_S:
            return 0
        # Some are slower than the others.
        awaited = messages + gathered
        awaited -= awaited // 16
        if awaited <= gathered or awaited == 1:
            return 0
        self._missing = awaited - gathered
        self._waits_left = _MAX_WAITS
        self.wait_s = min(max(took_s / 2, _MIN_WAIT_S), _MAX_WAIT_S)
        return awaited

    def goes_on_waiting(self, missing: int) -> bool:
        """Return whether a round whose time is over waits as long again; so many are missing."""
        came, self._missing = self._missing - missing, missing
        self._waits_left -= 1
        return self._waits_left > 0 and 4 * came >= missing

    def _restart(self, now_s: float) -> None:
        self._messages, self._began_s = 0, now_s
        if self._pairs_left:
            self._rounds_left = _TURN_ROUNDS

    def _end_turn(self, now_s: float) -> None:
        """End a turn of the trial, or the rest."""
        rate = self._messages / max(now_s - self._began_s, 1e-6)
        self._messages, self._began_s = 0, now_s
        if not self._pairs_left:
            self._pairs_left, self._lost = _TRIAL_PAIRS, 0
            self._waits = False
        elif not self._waits:
            self._rate_at_once = rate
            self._waits = True
        else:
            self._lost += rate <= _GAIN * self._rate_at_once
            self._pairs_left -= 1
            self._waits = False
            if self._lost > _MAX_LOST or not self._pairs_left:
                self._end_trial()
        self._rounds_left = _TURN_ROUNDS if self._pairs_left else self._rest_rounds

    def _end_trial(self) -> None:
        self._pairs_left = 0
        self._waits = self._lost <= _MAX_LOST
        longer = min(2 * self._rest_rounds, _MAX_REST_ROUNDS)
        self._rest_rounds = _MIN_REST_ROUNDS if self._waits else longer
