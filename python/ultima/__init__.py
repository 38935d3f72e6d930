"""AllReduce for distributed training that ends by a deadline, with the gradients that have arrived by then.

In a training script for PyTorch:

    model = DistributedDataParallel(model)
    model.register_comm_hook(ultima.State(), ultima.allreduce_hook)

Without PyTorch: `Job`.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from ._errors import (
    ClosedError,
    ControllerError,
    DtypeError,
    Error,
    ForkError,
    GoneError,
    IncompleteError,
    MismatchError,
    RendezvousError,
    SettingError,
)
from ._job import Job, Pending
from ._native import VERSION, Outcome
from ._settings import Settings
from ._stats import StepStats, tensorboard

if TYPE_CHECKING:
    from ._ddp import State, allreduce_hook

__all__ = [
    "ClosedError",
    "ControllerError",
    "DtypeError",
    "Error",
    "ForkError",
    "GoneError",
    "IncompleteError",
    "Job",
    "MismatchError",
    "Outcome",
    "Pending",
    "RendezvousError",
    "SettingError",
    "Settings",
    "State",
    "StepStats",
    "__version__",
    "allreduce_hook",
    "tensorboard",
]

__version__ = VERSION


# Names that load torch, which programs with NumPy alone do not need.
_WITH_TORCH = {"State", "allreduce_hook"}


def __dir__() -> list[str]:
    # help() reads all of these names.
    names = {*globals(), *__all__}
    return sorted(names if importlib.util.find_spec("torch") else names - _WITH_TORCH)


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        from . import _ddp

        return getattr(_ddp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# New versions of torch find the backend by its entry point, old ones after this import.
if "torch" in sys.modules:
    from . import _backend

    _backend.register()
