"""The rendezvous of a process group's ranks, at the group's own store."""

from __future__ import annotations

import os
import time
from typing import Any

import torch.distributed as dist

from ._errors import RendezvousError
from ._network import is_loopback, route_to

# The longest pause between two looks at the store.
_PAUSE = 0.05


class TorchStore:
    """A torch store with what Ultima's rendezvous needs of it.

    A wait that times out breaks the connection of torch 1.13's TCPStore, and not every store can look without waiting.
    All of them can add zero to a number: a value's number is 1 or more as soon as it is there.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._cancelled = False

    def cancel(self) -> None:
        """End all waits."""
        self._cancelled = True

    def set(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._call("set", key, value)
        self._call("add", f"{key}/there", 1)

    def get(self, key: str, seconds: float) -> bytes | None:
        """Return a value as soon as it is there, or None after `seconds`."""
        end = time.monotonic() + seconds
        pause = 0.001
        while self._call("add", f"{key}/there", 0) == 0:
            if self._cancelled:
                raise InterruptedError("the rendezvous was interrupted")
            if time.monotonic() >= end:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)
        return bytes(self._call("get", key))

    def count(self, key: str) -> int:
        """Add one to a number that starts at 0."""
        return int(self._call("add", key, 1))

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._store, method)(*arguments)
        except (RuntimeError, OSError) as error:
            # Without the frames of C++ that follow.
            reason = str(error).partition("\n")[0]
            raise RendezvousError(
                f"the process that serves it (rank 0, or torchrun on its host) does not answer: {reason}; check its log"
            ) from None

    def host(self) -> str | None:
        """Return the host that serves the store, or None for a store without one."""
        store = self._store
        while (inner := getattr(store, "underlying_store", None)) is not None:
            store = inner
        host = getattr(store, "host", None)
        return str(host) if host else os.environ.get("MASTER_ADDR")


def default_store() -> TorchStore:
    """Return the store of `init_process_group`, whichever way its ranks met."""
    return TorchStore(dist.distributed_c10d._get_default_store())


def prefix_of(group: Any) -> str:
    """Return what the keys of a process group begin with."""
    ranks = dist.distributed_c10d.get_process_group_ranks(group)
    return "ultima/" + "-".join(map(str, ranks))


def local_address(store: TorchStore, prefix: str, rank: int, ranks: int, seconds: float) -> str:
    """Choose the local address that the other ranks reach. Raise RendezvousError if the store fails.

    It is the one that routes to the store. On the store's own machine that may be loopback, if its name has such an
    address there; then it is the one that routes to a rank on another machine, if there is one.
    """
    own = route_to(store.host())
    prefix = f"{prefix}/address/{store.count(f'{prefix}/addresses/{rank}')}"
    store.set(f"{prefix}/{rank}", own.encode())
    if not is_loopback(own):
        return own
    for other in range(ranks):
        address = store.get(f"{prefix}/{other}", seconds)
        if address is None:
            break  # The rendezvous says which ranks are missing.
        if not is_loopback(address.decode()):
            return route_to(address.decode())
    return own
