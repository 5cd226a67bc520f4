"""The policies of a broker: those of --policy-file and those made by HTTP; who they apply to.

A change applies to all topics in steps. What a policy says of what has come is looked at every
second as well: messages become too old while nobody reads, and a new bound may find a long backlog.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio

from trionsq.broker.channel import Channel
from trionsq.broker.chores import Chore, Chores
from trionsq.broker.defects import Defects
from trionsq.broker.replaced_file import ReplacedFile
from trionsq.broker.runtime import Clock
from trionsq.broker.topic import Topic
from trionsq.core.channel import ChannelState
from trionsq.core.dispatch import GovernsQueue
from trionsq.core.governed import govern_channel
from trionsq.core.governed_topic import govern_topic
from trionsq.core.policies import Policy, PolicyError, PolicySet, parse_policies
from trionsq.core.topic import TopicState
from trionsq.storage.folder import DataFolder, Job, reason_of
from trionsq.storage.metadata import MetadataError
from trionsq.storage.policies import POLICIES_FILE, load_policies, save_policies

__all__ = ["Policies", "PolicyOfFile"]

log = logging.getLogger("trionsq")

# Work on topics and channels before other tasks get their turn.
_STEP_S: Final = 0.002
# Time between two looks at all queues, and at the policy file.
_LOOK_S: Final = 1.0
# Time between two log lines of one queue about what it dropped, and lines at a time.
_LOG_S: Final = 10.0
_MAX_LINES: Final = 10
# Why a policy drops messages.
REASONS: Final = ("expired", "max_age", "max_messages", "max_bytes")


class PolicyOfFile(Exception):
    """The policy is of --policy-file, and is changed there."""


class Policies:
    """The policies.

    Attributes:
        applied: all of them.
        of_file: those of --policy-file, by name.
        file_error: why the file as it is now is not used; empty if it is.
    """

    def __init__(
        self,
        folder: DataFolder,
        topics: Mapping[str, Topic],
        clock: Clock,
        chores: Chores,
        defects: Defects,
    ) -> None:
        self.applied = PolicySet()
        self.of_file: dict[str, Policy] = {}
        self.file_error = ""
        self._stored: dict[str, Policy] = {}
        self._disk = folder.disk
        self._topics = topics
        self._clock = clock
        self._chores = chores
        self._defects = defects
        self._file = ReplacedFile(folder, POLICIES_FILE)
        self._policy_file = ""
        # What the policy file was when it was read last.
        self._seen: tuple[int, ...] = ()
        self._look = trio.Event()
        self._must_read = False
        self._applying: Chore | None = None
        self._log_at_s = 0.0

    def __repr__(self) -> str:
        return f"<Policies {len(self.applied)}>"

    def load(self, policy_file: str = "") -> None:
        """Read what there is, at the start; ``policy_file`` is the path of --policy-file.

        Raises:
            MetadataError: the policies of the data path, or the policy file, are not valid.
        """
        self._policy_file = policy_file
        self._stored = {policy.name: policy for policy in load_policies(self._disk)}
        if self._policy_file:
            path = self._policy_file
            try:
                self._seen = _stamp(path)
                found = _read(path)
            except OSError as error:
                raise MetadataError(
                    f"failed to load policies - open {path}: {reason_of(error)}"
                ) from error
            except ValueError as error:
                raise MetadataError(f"failed to load policies - {path}: {error}") from error
            self.of_file = {policy.name: policy for policy in found}
        self._combine()

    def _combine(self) -> None:
        self.applied = PolicySet({**self._stored, **self.of_file}.values())

    # Changes

    async def put(self, policy: Policy) -> bool:
        """Make or replace a policy; return whether it is durable. It applies in any case.

        Raises:
            PolicyOfFile: it is of --policy-file.
        """
        if policy.name in self.of_file:
            raise PolicyOfFile
        self._stored[policy.name] = policy
        log.info("NSQ: policy %s is now %s", policy.name, policy.document())
        return await self._changed()

    async def delete(self, name: str) -> bool:
        """Delete a policy; return whether that is durable.

        Raises:
            KeyError: there is none.
            PolicyOfFile: it is of --policy-file.
        """
        if name in self.of_file:
            raise PolicyOfFile
        del self._stored[name]
        log.info("NSQ: policy %s is deleted", name)
        return await self._changed()

    async def _changed(self) -> bool:
        self._combine()
        applying = self._apply()
        is_saved = await self._save()
        await applying.wait()
        return is_saved

    async def _save(self) -> bool:
        async def job() -> Job:
            return partial(save_policies, self._disk, list(self._stored.values()))

        return await self._file.write(job)

    def _apply(self) -> Chore:
        """Apply all policies to all topics, in steps."""
        if self._applying is not None:
            self._applying.stop()  # whoever waits for it has been overtaken
        self._applying = self._chores.start(self._steps())
        return self._applying

    def _steps(self) -> Iterator[None]:
        until = time.perf_counter() + _STEP_S
        for name in list(self._topics):
            topic = self._topics.get(name)
            if topic is None:
                continue
            matching = self.applied.match(name)
            for channel_name in list(topic.core.channels):
                channel = topic.core.channels.get(channel_name)
                if channel is not None:
                    self._settle_channel(channel, matching)
                if time.perf_counter() > until:
                    yield
                    until = time.perf_counter() + _STEP_S
            govern_topic(topic.core, self.applied.topic_settings(matching), self._clock.now_ns)
            if time.perf_counter() > until:
                yield
                until = time.perf_counter() + _STEP_S

    def _settle_channel(self, channel: ChannelState, matching: list[int]) -> None:
        settings = self.applied.channel_settings(matching, channel.name)
        before = channel.settings
        if before is None and settings is None:
            return
        govern_channel(channel, settings, self._clock.now_ns)
        if settings != before:
            channel.wake()  # more may be in flight now

    def settle_topic(self, topic: TopicState) -> None:
        """Apply the policies to a new topic, which has no channel yet."""
        if len(self.applied):
            matching = self.applied.match(topic.name)
            settings = self.applied.topic_settings(matching)
            if settings is not None:
                govern_topic(topic, settings, self._clock.now_ns)

    def settle_channel(self, topic: TopicState, channel: ChannelState) -> None:
        """Apply the policies to a new channel, before its topic has it."""
        if len(self.applied):
            self._settle_channel(channel, self.applied.match(topic.name))
            if channel.settings is not None:
                govern_topic(topic, topic.settings, self._clock.now_ns, channel)

    # By time

    def reload(self) -> None:
        """Read the policy file again soon, whatever its time says."""
        self._must_read = True
        self._look.set()

    async def run(self) -> None:
        """Look at the policy file and at the queues with a policy, for ever."""
        while True:
            with trio.move_on_after(_LOOK_S):
                await self._look.wait()
            self._look = trio.Event()
            if self._policy_file:
                await self._look_at_file()
            if self._file.has_failed:
                await self._save()
            if len(self.applied):
                await self._look_at_queues()

    async def _look_at_file(self) -> None:
        must_read, self._must_read = self._must_read, False
        path = self._policy_file
        try:
            seen = await trio.to_thread.run_sync(_stamp, path)
            if seen == self._seen and not must_read:
                return
            self._seen = seen
            found = await trio.to_thread.run_sync(_read, path)
        except OSError as error:
            self._note_file_error(f"open {path}: {reason_of(error)}")
            return
        except ValueError as error:
            self._note_file_error(f"{path}: {error}")
            return
        of_file = {policy.name: policy for policy in found}
        together = {**self._stored, **of_file}
        applied = await trio.to_thread.run_sync(PolicySet, together.values())
        self.of_file, self.file_error = of_file, ""
        if {**self._stored, **of_file} == together:
            self.applied = applied
        else:
            self._combine()
        log.info("NSQ: %s has %d policies", path, len(of_file))
        self._apply()

    def _note_file_error(self, text: str) -> None:
        if text != self.file_error:
            log.error("NSQ: the policies stay as they were - %s", text)
        self.file_error = text

    async def _look_at_queues(self) -> None:
        until = time.perf_counter() + _STEP_S
        lines = 0
        logs = self._clock.now_s() >= self._log_at_s
        for topic in list(self._topics.values()):
            cores: list[TopicState | ChannelState] = [*topic.core.channels.values(), topic.core]
            for core in cores:
                governor = core.governor
                if governor is None:
                    continue
                with self._defects.fence("policy", f"{core!r}"):
                    while governor is not None and self._look_at_queue(governor):
                        await trio.lowlevel.checkpoint()
                        until = time.perf_counter() + _STEP_S
                        governor = core.governor  # another policy may apply meanwhile, or none
                if logs and lines < _MAX_LINES:
                    lines += self._log_drops(topic, core)
                if time.perf_counter() > until:
                    await trio.lowlevel.checkpoint()
                    until = time.perf_counter() + _STEP_S
        if lines:
            self._log_at_s = self._clock.now_s() + _LOG_S

    def _look_at_queue(self, governor: GovernsQueue) -> bool:
        """Drop some of what is too old or too much; return whether there is more."""
        now_s = self._clock.now_s()
        more = governor.drop_old(now_s, self._clock.now_ns())
        return governor.trim(now_s) or more

    def _log_drops(self, topic: Topic, core: TopicState | ChannelState) -> bool:
        owner: Topic | Channel | None = topic
        what = f"TOPIC({topic.name})"
        if isinstance(core, ChannelState):
            owner = topic.channels.get(core.name)
            what = f"CHANNEL({topic.name}:{core.name})"
        if owner is None or owner.core is not core:
            return False  # deleted meanwhile
        dropped = core.dropped
        total = sum(dropped[reason] for reason in REASONS)
        before, owner.logged_drops = owner.logged_drops, total
        if total <= before:
            return False
        counts = ", ".join(f"{dropped[one]} {one}" for one in REASONS if dropped[one])
        log.warning(
            "%s: policies dropped %d messages; since the start: %s", what, total - before, counts
        )
        return True


def _stamp(path: str) -> tuple[int, ...]:
    found = Path(path).stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: str) -> list[Policy]:
    try:
        return parse_policies(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise PolicyError(f"it is not UTF-8: {error}") from error
