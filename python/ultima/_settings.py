"""The settings of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from ._errors import SettingError


class Settings(TypedDict, total=False):
    """What a user may set of a job. All ranks use the same, but for `interface` and `rate`."""

    deadline: float
    """Seconds after which an AllReduce ends with what has arrived. Default: 5, or ULTIMA_DEADLINE."""
    timeout: float
    """Seconds to wait for the other ranks at the start. Default: 300, or ULTIMA_TIMEOUT."""
    exact_timeout: float
    """Seconds after which an exact operation fails. Default: 60."""
    seed: int
    """Seed of signs and rotations, 64 bits. Default: rank 0 draws one, or ULTIMA_SEED."""
    interface: str
    """Interface for packets, such as "eth0". Default: chosen by routes, or ULTIMA_INTERFACE."""
    recycling: bool
    """True if later steps deliver what an earlier one lost. Default: False."""
    hadamard: bool
    """True if a transform spreads each loss over many values. Default: True."""
    learning: bool
    """True if deadlines are learned: an AllReduce then waits little longer than usual. Default: True."""
    wire: str
    """The type of values in packets: "f32", "bf16" or "f16". Default: "f32"."""
    rate: int
    """The rate to send at, in bits per second. Default: as fast as the receivers allow."""
    slot_bytes: int
    """Bytes of values in a full packet. Default: what all interfaces take."""


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings, those that are not set as None."""
    names = sorted(Settings.__annotations__)
    unknown = set(settings) - set(names)
    if unknown:
        raise SettingError(f"unknown setting {min(unknown)!r}: expected {', '.join(names)}")
    return {name: settings.get(name) for name in names}
