"""The native half of this package (private)."""

from typing import Any

VERSION: str

class Job:
    rank: int
    ranks: int
    address: str
    seed: int
    slot_bytes: int
    deadline: float
    def reduce(self, address: int, len: int, owner: object, bucket: int | None = None) -> Pending: ...
    def exact(
        self, kind: tuple[str, int], source: tuple[int, int, object], to: tuple[int, int, object], /
    ) -> Pending: ...
    def begin_step(self) -> None: ...
    def set_loss_scale(self, scale: float) -> None: ...
    def set_deadline(self, deadline: float) -> None: ...
    def set_multicast(self, multicast: bool) -> None: ...
    def close(self) -> None: ...

class Pending:
    def wait(self, seconds: float | None = None) -> Outcome | None: ...

class Outcome:
    """How an operation ended at this rank."""

    @property
    def step(self) -> int:
        """The step that the operation belongs to."""
    @property
    def bucket(self) -> int:
        """Its bucket in the step."""
    @property
    def seconds(self) -> float:
        """Seconds from its start to its end."""
    @property
    def closed_by(self) -> str:
        """What ended it: "complete", "known-loss", "early", "flush" or "deadline", the worst last."""
    @property
    def deadline(self) -> float:
        """Its deadline: seconds from its start. 0 for an exact operation."""
    @property
    def owed(self) -> int:
        """Packets that other ranks owed this one."""
    @property
    def lost(self) -> dict[str, int]:
        """Those that did not arrive in time, by cause."""
    @property
    def lost_share(self) -> float:
        """Their share, 0 to 1."""
    @property
    def late(self) -> dict[int, float]:
        """The share of a rank's packets that did not arrive in time, by rank, where that is not 0."""
    @property
    def missed(self) -> dict[int, int]:
        """The packets that did not arrive in time, by the rank that owed them."""
    @property
    def trimmed_by_hops(self) -> dict[int, int]:
        """Packets whose payload a switch removed, by the number of switches on their path up to here."""
    @property
    def slowest(self) -> tuple[int, float] | None:
        """The rank whose contributions arrived last, and the seconds that this rank waited for them alone."""
    @property
    def silent(self) -> list[int]:
        """Ranks that were silent in this and at least two earlier operations. The job does not wait for them."""

def check(settings: dict[str, Any]) -> None: ...
def start(
    settings: dict[str, Any],
    meeting: tuple[int, list[str]] | tuple[object, int, int, str, str] | int | None,
) -> Job: ...
