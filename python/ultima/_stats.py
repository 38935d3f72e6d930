"""Statistics of steps, and the log of ranks that hold a job up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from ._log import logger
from ._native import Outcome

# The worst last.
_CLOSED_BY = ("complete", "known-loss", "early", "flush", "deadline")
# The share of a rank's packets that are late, or of a step that waits for the rank alone, if the rank holds the job up.
_HALF = 0.5
# A rank that makes the others wait is named if it costs as many seconds, and this share of the time meanwhile.
_COST, _COST_SHARE = 1.0, 0.1
# A step that takes at most this multiple of the usual time waits for no rank.
_NO_LONGER = 1.5
# Steps without such a wait after which the rank is back.
_STEPS_IN_TIME = 10


@dataclass
class StepStats:
    """What became of one step's gradients at this rank."""

    step: int
    """The job's number of the step."""
    seconds: float = 0.0
    """From the first bucket's start to the last one's end."""
    buckets: int = 0
    """AllReduces of the step."""
    closed_by: str = "complete"
    """What ended the worst of them: "complete", "known-loss", "early", "flush" or "deadline"."""
    deadline: float = 0.0
    """The deadline of an AllReduce, in seconds from its start."""
    owed: int = 0
    """Packets that other ranks owed this one."""
    lost: dict[str, int] = field(default_factory=dict)
    """Those that did not arrive in time, by cause."""
    late: dict[int, float] = field(default_factory=dict)
    """The largest share of a rank's packets that one bucket missed, by rank."""
    silent: list[int] = field(default_factory=list)
    """Ranks that the job does not wait for any more."""
    waited: dict[int, float] = field(default_factory=dict)
    """The longest time, in seconds, for which one bucket waited for a rank alone: all others' packets had arrived."""

    @property
    def lost_share(self) -> float:
        """The share of the owed packets that did not arrive in time, 0 to 1."""
        return sum(self.lost.values()) / max(self.owed, 1)

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of one of the step's buckets."""
        self.buckets += 1
        self.closed_by = max(self.closed_by, outcome.closed_by, key=_CLOSED_BY.index)
        self.deadline = outcome.deadline
        self.owed += outcome.owed
        for cause, lost in outcome.lost.items():
            self.lost[cause] = self.lost.get(cause, 0) + lost
        for rank, share in outcome.late.items():
            self.late[rank] = max(self.late.get(rank, 0.0), share)
        self.silent = outcome.silent
        if outcome.slowest is not None:
            rank, seconds = outcome.slowest
            self.waited[rank] = max(self.waited.get(rank, 0.0), seconds)


@dataclass
class _Slow:
    """A rank that arrives in time, but last by far."""

    first: int
    newest: int
    since: float
    """When its first such step began."""
    steps: int = 0
    cost: float = 0.0
    """Seconds that the job waited for the rank alone."""
    is_named: bool = False


class Watch:
    """Logs which rank holds the job up, since when and by how much."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._others = set(range(ranks)) - {rank}
        # Of the late ranks: the first step, and its time.
        self._since: dict[int, tuple[int, float]] = {}
        self._slow: dict[int, _Slow] = {}
        # This rank was late.
        self._is_late = False
        self._usual: float | None = None
        self._silence: float | None = None

    def add(self, step: StepStats, now: float | None = None) -> float:
        """Log what a step changes. Return the seconds for which all other ranks have been silent."""
        now = time.monotonic() if now is None else now
        late = {rank for rank, share in step.late.items() if share >= _HALF} | set(step.silent)
        if not late:
            self._usual = step.seconds if self._usual is None else 0.9 * self._usual + 0.1 * step.seconds
        # This rank's own delay or link makes all others late at once.
        is_late = late == self._others and len(late) > 1 and not self._since
        if is_late and not self._is_late:
            logger.warning(
                "step %d: less than half of every other rank's packets arrived here in time: this rank was late, or "
                "its link loses packets",
                step.step,
            )
        elif self._is_late and not is_late:
            logger.warning("step %d: other ranks' packets arrive here in time again", step.step)
        self._is_late = is_late
        if not is_late:
            self._name_late(step, late, now)
        self._name_slow(step, late, now)
        if late != self._others or set(step.silent) != self._others:
            self._silence = None
        elif self._silence is None:
            self._silence = now
        return 0.0 if self._silence is None else now - self._silence

    def _name_late(self, step: StepStats, late: set[int], now: float) -> None:
        """Log ranks whose packets are late, and those that are in time again."""
        for rank in sorted(late - set(self._since)):
            logger.warning("%s", self._description(rank, step))
        for rank in sorted(set(self._since) - late):
            first, since = self._since.pop(rank)
            logger.warning(
                "rank %d is in time again at step %d: it was late for %d steps, %.3g s",
                rank,
                step.step,
                step.step - first,
                now - since,
            )
        for rank in late:
            self._since.setdefault(rank, (step.step, now - step.seconds))

    def _name_slow(self, step: StepStats, late: set[int], now: float) -> None:
        """Log ranks that are in time, but for which the others wait for most of many steps."""
        for rank, waited in step.waited.items():
            if rank in late or waited < _HALF * step.seconds:
                continue
            slow = self._slow.setdefault(rank, _Slow(step.step, step.step, now - step.seconds))
            slow.newest = step.step
            slow.steps += 1
            slow.cost += waited
            if not slow.is_named and slow.cost >= max(_COST, _COST_SHARE * (now - slow.since)):
                slow.is_named = True
                logger.warning(
                    "rank %d holds the job up since step %d: its packets arrive last, and have cost %.3g s in %d steps",
                    rank,
                    slow.first,
                    slow.cost,
                    slow.steps,
                )
        for rank in [rank for rank, slow in self._slow.items() if step.step - slow.newest >= _STEPS_IN_TIME]:
            slow = self._slow.pop(rank)
            if slow.is_named:
                logger.warning(
                    "rank %d is as fast as the others again since step %d: it has cost %.3g s in %d steps",
                    rank,
                    slow.newest + 1,
                    slow.cost,
                    slow.steps,
                )

    def _description(self, rank: int, step: StepStats) -> str:
        share = f"{step.late.get(rank, 1.0):.0%}"
        if self._usual is not None and step.closed_by != "deadline" and step.seconds <= _NO_LONGER * self._usual:
            return (
                f"step {step.step} has ended as soon as usual, without {share} of rank {rank}'s packets: this rank was "
                "late, or the link loses packets"
            )
        missed = f"missed the deadline of {step.deadline:.3g} s" if step.closed_by == "deadline" else "came too late"
        text = f"rank {rank} holds the job up since step {step.step}: {share} of its packets {missed}"
        if self._usual is not None:
            text += f"; the step took {step.seconds:.3g} s, {max(step.seconds - self._usual, 0):.3g} s more than usual"
        return text


class Writer(Protocol):
    """What `tensorboard` needs of a `SummaryWriter`."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Record a value."""


_listeners: list[Callable[[object, StepStats], None]] = []


def tensorboard(writer: Writer, *, state: object = None, tag: str = "ultima") -> None:
    """Record the time and the losses of every step from now on to a TensorBoard `SummaryWriter`.

    Args:
        writer: Where to record.
        state: Record this `State`'s steps only. With several states, give each a tag of its own.
        tag: What the names of the values start with.

    """

    def record(of: object, step: StepStats) -> None:
        if state is not None and of is not state:
            return
        writer.add_scalar(f"{tag}/seconds", step.seconds, step.step)
        writer.add_scalar(f"{tag}/lost_share", step.lost_share, step.step)
        writer.add_scalar(f"{tag}/late_ranks", len(step.late), step.step)
        writer.add_scalar(f"{tag}/silent_ranks", len(step.silent), step.step)
        for cause, lost in step.lost.items():
            writer.add_scalar(f"{tag}/lost/{cause}", lost, step.step)

    _listeners.append(record)


def publish(state: object, step: StepStats) -> None:
    """Hand a state's finished step to all listeners."""
    for listener in _listeners:
        try:
            listener(state, step)
        except Exception:
            logger.exception("a listener to Ultima's statistics failed")
