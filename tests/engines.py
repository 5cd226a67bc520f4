"""Which engine keeps the messages of the tests' topics.

``TRIONSQ_TEST_STORAGE=log`` gives a log to each topic of each nsqd that a test starts, in this
process or as a process of its own, unless the test chooses for itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import pytest

from trionsq.broker.options import NsqdOptions

__all__ = ["LEFT_OUT", "ON_LOG", "OPTIONS", "is_left_out", "use_engine"]

VARIABLE: Final = "TRIONSQ_TEST_STORAGE"


def _is_log() -> bool:
    match os.environ.get(VARIABLE, ""):
        case "" | "default":
            return False
        case "log":
            return True
        case other:
            raise pytest.UsageError(f"{VARIABLE}={other}: it may be default or log")


ON_LOG: Final = _is_log()

OPTIONS: Final = {"storage": "log", "durability": "always"} if ON_LOG else {}
"""Options of nsqd that a test does not set itself."""

_ROUNDS = "it puts rounds of its own in place of the backends"
_FILES = "it looks at the files of disk queues, or has them fail"
_MEMORY = "it fills the memory of a queue, which takes nothing that is published to a log"
_DEFECT = "it puts a defect into disk queues, or looks for messages in memory"
_ORDER = "what a slow client refused is served in turn with what it has not got yet"

LEFT_OUT: Final[Mapping[str, str]] = {
    "tests/broker/test_cancellation_disk.py::test_a_stop_cancelled_at_any_await*": _MEMORY,
    "tests/broker/test_defects.py::test_a_defect_in_a_timer_of_the_disk_*": _DEFECT,
    "tests/broker/test_defects.py::test_a_defect_in_the_fan_out_loses_no_message": _DEFECT,
    "tests/broker/test_defects.py::test_a_defect_in_the_saving_of_one_queue_*": _DEFECT,
    "tests/broker/test_defects.py::test_a_defect_while_a_message_is_served_*": _DEFECT,
    "tests/broker/test_defects.py::test_what_is_put_back_is_not_lost_by_a_defect": _DEFECT,
    "tests/broker/test_disk_faults.py::*": _FILES,
    "tests/broker/test_gathering.py::test_a_full_disk_refuses_what_memory_has_no_room_for": _MEMORY,
    "tests/broker/test_idle.py::test_consumers_hold_nothing_*": "the newest messages are cached",
    "tests/broker/test_limits.py::test_a_client_that_reads_gets_large_messages_*": _ORDER,
    "tests/broker/test_lookup_channels.py::test_publishers_do_not_spin_*": _MEMORY,
    "tests/broker/test_options.py::test_the_table_is_the_documented_one": "the switch is in it",
    "tests/broker/test_owed_answers.py::*": _ROUNDS,
    "tests/broker/test_owed_scripts.py::*": _ROUNDS,
    "tests/broker/test_recovered.py::*": "a log has no copies after an unclean stop",
    "tests/broker/test_memory_guard.py::test_what_is_over_goes_to_disk": _MEMORY,
    "tests/broker/test_memory_guard.py::test_while_it_is_too_much_all_goes_to_disk": _MEMORY,
    "tests/broker/test_options.py::test_a_bad_value_ends_the_start*--move-topics needs*": (
        "the switch is the option that it lacks"
    ),
    "tests/broker/test_restart.py::test_a_deferral_is_kept_over_a_restart*": _FILES,
    "tests/broker/test_slow_clients.py::test_a_blocked_client_goes_on_when_it_reads": _ORDER,
    "tests/broker/test_stop.py::test_a_disk_that_hangs_does_not_hang_the_stop": _FILES,
    "tests/broker/test_stop.py::test_a_disk_without_capacity_at_the_stop": _FILES,
    "tests/broker/test_stop.py::test_a_failed_sync_at_the_stop_is_tried_again": _FILES,
    "tests/broker/test_stop.py::test_a_full_disk_is_named_*": _FILES,
    "tests/broker/test_stop.py::test_a_stop_while_a_publisher_waits_for_the_disk": _MEMORY,
    "tests/broker/test_stop.py::test_a_sync_that_fails_for_a_while_*": _FILES,
    "tests/broker/test_stop.py::test_what_did_not_fit_is_saved_*diskqueue*": _FILES,
    "tests/broker/test_topics.py::test_a_channel_that_the_disk_refuses_stops_the_topic": _MEMORY,
    "tests/broker/test_topics.py::test_a_full_channel_does_not_stop_the_topic": _MEMORY,
    "tests/broker/test_topics.py::test_a_run_of_pubs_is_refused_before_any_ok": _MEMORY,
    "tests/broker/test_topics.py::test_deleting_the_full_channel_*": _MEMORY,
    "tests/broker/test_topics.py::test_mpub_is_all_or_nothing*": _MEMORY,
    "tests/broker/test_topics.py::test_sampling_makes_room_too": _MEMORY,
    "tests/broker/test_topics.py::test_what_memory_has_no_room_for_goes_to_disk": _MEMORY,
    "tests/broker/test_turns.py::test_deferred_messages_are_read_from_disk_in_turns*": _FILES,
    "tests/golden/test_diskqueue.py::*": _FILES,
    "tests/http/test_app.py::test_a_publish_that_the_disk_refuses": _MEMORY,
    "tests/http/test_app.py::test_what_memory_has_no_room_for_goes_to_disk": _MEMORY,
    "tests/http/test_health.py::test_it_is_not_ready_with_a_failing_disk_*": _FILES,
    "tests/http/test_peek.py::test_a_missing_file_is_told": _FILES,
    "tests/http/test_peek.py::test_a_topic_deleted_during_the_look": _FILES,
    "tests/http/test_peek.py::test_damage_on_disk_is_told": _FILES,
    "tests/http/test_peek.py::test_deferred_messages_on_disk_are_marked": _MEMORY,
    "tests/http/test_peek.py::test_far_offsets_are_refused": _FILES,
    "tests/http/test_peek.py::test_memory_comes_before_disk": _MEMORY,
    "tests/http/test_peek.py::test_what_a_topic_could_not_hand_over_is_shown": _MEMORY,
    "tests/http/test_metrics.py::test_an_age_that_the_disk_does_not_tell_*": _FILES,
    "tests/http/test_unsafe_publishes.py::*": _ROUNDS,
    "tests/simulation/test_mutants.py::test_a_bad_change_is_found*": (
        "its bad changes are those of the other engine; the crash sweep has those of logs"
    ),
}
"""Patterns of ids of tests that have nothing to ask of a log, or ask for what it does not have yet,
and why."""


def is_left_out(nodeid: str) -> bool:
    """Whether a test does not belong to a run on logs."""
    # A bracket is no pattern here.
    name = nodeid.replace("[", "(").replace("]", ")")
    return ON_LOG and any(fnmatchcase(name, pattern) for pattern in LEFT_OUT)


def use_engine() -> None:
    """Have each `NsqdOptions` begin with `OPTIONS`."""
    made = NsqdOptions.__init__

    def with_engine(self: NsqdOptions, **values: Any) -> None:
        made(self, **(OPTIONS | values))

    if ON_LOG:
        NsqdOptions.__init__ = with_engine  # type: ignore[method-assign]
