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


def _create_extended(options: Any, _: object) -> Any:
    group = dist.ProcessGroupGloo(
        options.store,
        options.group_rank,
        options.group_size,
        timeout=options.timeout,
        enable_reconfigure=options.enable_reconfigure,
    )
    group.options.global_ranks_in_group = options.global_ranks_in_group
    group.options.group_name = options.group_id
    return group


def register() -> None:
    """Register the backend, unless it is registered or this torch has no process groups."""
    if dist.is_available() and not hasattr(dist.Backend, _NAME.upper()):
        register = dist.Backend.register_backend
        # Old versions of torch do not ask.
        parameters = inspect.signature(register).parameters
        devices: dict[str, Any] = {"devices": ["cpu", "cuda"]} if "devices" in parameters else {}
        extended = getattr(dist.distributed_c10d, "_DistributedBackendOptions", None)
        # New versions of torch can give a group other ranks.
        if hasattr(extended, "enable_reconfigure"):
            register(_NAME, _create_extended, extended_api=True, **devices)
        else:
            register(_NAME, _create, **devices)
