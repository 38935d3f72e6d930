"""The settings of a job."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any, TypedDict

from ._errors import SettingError

# Ranges of whole numbers. Slower rates and smaller packets are mistakes, such as a rate in Mbit/s.
_RANGES = {
    "rate": (10**5, (1 << 64) - 1, "a whole number of bits per second, 100,000 or more"),
    "slot_bytes": (64, (1 << 64) - 1, "a multiple of 4, 64 or more"),
}


class Settings(TypedDict, total=False):
    """What a user may set of a job. All ranks use the same, but for `interface`, `rate` and `deadline_factor`."""

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
    deadline_factor: float
    """The multiple of its bucket's usual time after which an AllReduce ends, 1 to 1,000, such as 1.5. The first 20
    AllReduces show that time. Default: as long as `deadline` and the learned bounds allow."""
    wire: str
    """The type of values in packets: "f32", "bf16" or "f16". Default: "f32"."""
    rate: int
    """The rate to send at, in bits per second. Default: as fast as receivers and network allow."""
    slot_bytes: int
    """Bytes of values in a full packet. Default: what all interfaces take."""


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings, those that are not set as None."""
    names = sorted(Settings.__annotations__)
    unknown = set(settings) - set(names)
    if unknown:
        raise SettingError(f"unknown setting {min(unknown)!r}: expected {', '.join(names)}")
    return {name: None if settings.get(name) is None else _checked(name, settings[name]) for name in names}


def _checked(name: str, value: Any) -> Any:
    """Return the value of a setting as the type that Rust expects."""
    annotation = Settings.__annotations__[name]
    expected = str(getattr(annotation, "__forward_arg__", annotation))
    if expected == "float":
        return number(name, value)
    if expected == "int":
        return whole(name, value, *_RANGES.get(name, (0, (1 << 64) - 1, "a whole number of 64 bits, 0 or more")))
    if expected == "bool" and not isinstance(value, bool):
        raise SettingError(f"{name} is {value!r}: expected True or False")
    if expected == "str" and not isinstance(value, str):
        raise SettingError(f"{name} is {value!r}: expected a text")
    return value


def number(name: str, value: Any) -> float:
    """Return an argument that has to be a number, such as one of NumPy."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{name} is {value!r}: expected a number") from None


def whole(name: str, value: Any, least: int, most: int, expected: str) -> int:
    """Return an argument that has to be a whole number in a range, such as one of NumPy."""
    try:
        if isinstance(value, (bool, str, bytes)):
            raise TypeError
        found = int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
        if not least <= found <= most:
            raise ValueError
        return found
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{name} is {value!r}: expected {expected}") from None


def silence_limit(value: Any) -> float | None:
    """Return `gone_after` as seconds, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, str) or not 0 < (seconds := number("gone_after", value)) < math.inf:
        raise SettingError(f"gone_after is {value!r}: expected seconds, such as 60, or None")
    return seconds
