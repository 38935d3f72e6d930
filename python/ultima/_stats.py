"""Statistics of steps, the log of ranks that hold a job up, and the error about ranks that are gone."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from ._errors import GoneError, SettingError
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
# A link is lossy if it loses this share of a rank's packets in so many steps, until it loses less than half of that.
_LOSSY, _LOSSY_STEPS = 0.05, 50
# Silence ends a training after as many steps at least: a pause between two steps, as for an evaluation, counts as one.
_GONE_STEPS = 20
# What repairs replicas of a model after a rank was late.
REPLICAS = "; replicas may differ now: state.average(model.parameters()) on every rank makes them equal"


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
    missed: dict[int, int] = field(default_factory=dict)
    """The packets that did not arrive in time, by the rank that owed them."""
    trimmed_by_hops: dict[int, int] = field(default_factory=dict)
    """Packets whose payload a switch removed, by the number of switches on their path up to here."""

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
        for total, packets in (
            (self.missed, outcome.missed),
            (self.trimmed_by_hops, outcome.trimmed_by_hops),
        ):
            for key, count in packets.items():
                total[key] = total.get(key, 0) + count
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


@dataclass
class _Silence:
    """A rank that the job does not wait for."""

    first: int
    since: float
    counted: float = 0.0
    """Seconds of silence. One step, with the pause before it, adds at most 1/_GONE_STEPS of the limit."""


class Watch:
    """Logs which rank or link holds the job up, since when and by how much. Raises GoneError if a rank is gone."""

    def __init__(self, rank: int, ranks: int, gone_after: float | None = None, advice: str = "") -> None:
        """Watch a job of `ranks` ranks at `rank`. The log has `advice` when a rank is back."""
        self._rank, self._ranks = rank, ranks
        self._others = set(range(ranks)) - {rank}
        self._gone_after, self._advice = gone_after, advice
        # Of the late ranks: the first step, and its time.
        self._since: dict[int, tuple[int, float]] = {}
        self._slow: dict[int, _Slow] = {}
        self._silent: dict[int, _Silence] = {}
        # This rank was late.
        self._is_late = False
        self._usual: float | None = None
        self._last: float | None = None
        # Of the last steps: number, owed packets, missed ones by rank, trimmed ones by hops; and the sums.
        self._recent: deque[tuple[int, int, Counter[int], Counter[int]]] = deque()
        self._owed = 0
        self._missed: Counter[int] = Counter()
        self._trimmed: Counter[int] = Counter()
        # Ranks whose packets are lost, or this one if those of all ranks are.
        self._lossy: set[int] = set()

    def add(self, step: StepStats, now: float | None = None) -> None:
        """Log what a step changes. Raise GoneError if a rank is silent for longer than `gone_after`."""
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
            logger.warning("step %d: other ranks' packets arrive here in time again%s", step.step, self._advice)
        self._is_late = is_late
        if not is_late:
            self._name_late(step, late, now)
        self._name_slow(step, late, now)
        self._name_lossy(step, late)
        self._count_silence(step, now)

    def _count_silence(self, step: StepStats, now: float) -> None:
        """Log ranks that the job does not wait for any more, and raise GoneError about those that do not return."""
        limit = self._gone_after
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        for rank in set(self._silent) - set(step.silent):
            del self._silent[rank]
        for silence in self._silent.values():
            silence.counted += passed if limit is None else min(passed, limit / _GONE_STEPS)
        new = sorted(set(step.silent) - set(self._silent))
        for rank in new:
            first, since = self._since.get(rank, (step.step, now - step.seconds))
            self._silent[rank] = _Silence(first, since)
        if new:
            after = "with gone_after=None the job continues"
            if limit is not None:
                after = f"if that lasts, GoneError ends the job after {limit:g} s and {_GONE_STEPS} steps (gone_after)"
            logger.warning("%s; %s", self._loss_of(new, now), after)
        gone = limit is not None and any(silence.counted >= limit for silence in self._silent.values())
        if gone and set(self._silent) == self._others:
            seconds = now - min(silence.since for silence in self._silent.values())
            raise GoneError(
                f"all other ranks have been silent for {seconds:.0f} s: check whether they and the network still run, "
                "and restart the job from its last checkpoint"
            )
        if gone:
            raise GoneError(
                f"{self._loss_of(sorted(self._silent), now)}: check the rank's log, and restart the job from its last "
                "checkpoint, as torchrun --max-restarts does; a controller's job replaces lost members by `ultima job "
                "resize`; with gone_after=None a job continues without the rank"
            )

    def _loss_of(self, ranks: list[int], now: float) -> str:
        """Describe what the silence of ranks costs."""
        oldest = min((self._silent[rank] for rank in ranks), key=lambda silence: silence.since)
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - (now - oldest.since)))
        if len(ranks) == 1:
            who, own = f"rank {ranks[0]} has", "its values, and the part that it averages"
        else:
            who, own = f"ranks {', '.join(map(str, ranks))} have", "their values, and the part that they average"
        return (
            f"{who} sent nothing since step {oldest.first} ({since}, {now - oldest.since:.0f} s ago): every mean lacks "
            f"{own}, {len(ranks)}/{self._ranks} of it"
        )

    def _name_lossy(self, step: StepStats, late: set[int]) -> None:
        """Log ranks of whose packets a sizeable share is lost. A late rank has its own line."""
        missed = Counter({rank: count for rank, count in step.missed.items() if rank not in late})
        trimmed = Counter(step.trimmed_by_hops)
        self._recent.append((step.step, step.owed, missed, trimmed))
        self._owed += step.owed
        self._missed += missed
        self._trimmed += trimmed
        if len(self._recent) > _LOSSY_STEPS:
            _, owed, missed, trimmed = self._recent.popleft()
            self._owed -= owed
            self._missed -= missed
            self._trimmed -= trimmed
        if len(self._recent) < _LOSSY_STEPS or not (self._missed or self._lossy):
            return
        # Shards are equal, and so is what every rank owes.
        owed_by_each = max(self._owed / max(len(self._others), 1), 1)
        shares = {rank: self._missed[rank] / owed_by_each for rank in sorted(self._others)}
        if len(shares) > 1:
            shares = {self._rank: min(shares.values()), **shares}
        for rank, share in shares.items():
            if rank != self._rank and self._rank in self._lossy:
                self._lossy.discard(rank)
                continue
            whose = "of every rank's packets to this one" if rank == self._rank else f"of rank {rank}'s packets"
            steps = f"steps {self._recent[0][0]} to {step.step}"
            if share > _LOSSY and rank not in self._lossy:
                self._lossy.add(rank)
                logger.warning(
                    "%s: %.0f%% %s did not arrive in time%s", steps, 100 * share, whose, self._place_of_losses()
                )
            elif share < _LOSSY / 2 and rank in self._lossy:
                self._lossy.remove(rank)
                logger.warning("%s: only %.2g%% %s did not arrive in time", steps, 100 * share, whose)

    def _place_of_losses(self) -> str:
        """Describe where the packets of the last steps were lost, if a switch has reported it."""
        places = [f"{count} of those that had passed {hops} switches" for hops, count in sorted(self._trimmed.items())]
        return f"; switches removed the payloads of {', '.join(places)}" if places else ""

    def _name_late(self, step: StepStats, late: set[int], now: float) -> None:
        """Log ranks whose packets are late, and those that are in time again."""
        for rank in sorted(late - set(self._since)):
            logger.warning("%s", self._description(rank, step))
        for rank in sorted(set(self._since) - late):
            first, since = self._since.pop(rank)
            logger.warning(
                "rank %d is in time again at step %d: it was late for %d steps, %.3g s%s",
                rank,
                step.step,
                step.step - first,
                now - since,
                self._advice,
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
    if isinstance(writer, type) or not callable(getattr(writer, "add_scalar", None)):
        raise SettingError(f"writer is {writer!r}: expected a SummaryWriter, an object that has add_scalar")

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
    for listener in [*_listeners]:
        try:
            listener(state, step)
        except Exception:
            with contextlib.suppress(ValueError):  # Another state's thread may have removed it.
                _listeners.remove(listener)
            logger.exception("a listener to Ultima's statistics failed, and gets no more steps")
