"""The process-group backend "ultima": `init_process_group("ultima")`.

Its collectives are exact: they are Gloo's. Bounded AllReduces are those of `State`, which the user asks for by name.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

_NAME = "ultima"


def _create(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def register() -> None:
    """Register the backend, unless it is registered or this torch has no process groups."""
    if dist.is_available() and not hasattr(dist.Backend, _NAME.upper()):
        register = dist.Backend.register_backend
        # Old versions of torch do not ask.
        has_devices = "devices" in inspect.signature(register).parameters
        devices: dict[str, Any] = {"devices": ["cpu", "cuda"]} if has_devices else {}
        register(_NAME, _create, **devices)
