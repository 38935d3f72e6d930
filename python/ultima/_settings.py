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
    try:
        if expected == "bool" and not isinstance(value, bool):
            raise TypeError
        if expected == "str" and not isinstance(value, str):
            raise TypeError
        if expected == "float":
            if isinstance(value, str):
                raise TypeError
            return float(value)
        if expected == "int":
            whole = int(value)
            if isinstance(value, str) or whole != value or not 0 <= whole < 1 << 64:
                raise TypeError
            return whole
    except (TypeError, ValueError, OverflowError):
        names = {"float": "a number", "int": "a whole number of 64 bits, 0 or more", "bool": "True or False"}
        wanted = names.get(expected, "a text")
        raise SettingError(f"{name} is {value!r}: expected {wanted}") from None
    return value
