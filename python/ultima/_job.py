"""Jobs: operations on NumPy arrays, and on everything that becomes one without a loss."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np

from . import _native
from ._errors import DtypeError, SettingError
from ._log import logger, use_default_handler
from ._network import interface_of, is_loopback
from ._settings import Settings, complete

if TYPE_CHECKING:
    from typing_extensions import Unpack

    Array = np.ndarray[Any, np.dtype[Any]]

Meeting = Union[tuple[int, list[str]], tuple[object, int, int, str, str], int, None]

# Numbers of buckets are below this.
_BUCKETS = 4095

# Whether this process has warned about loopback.
_has_warned = False

_open: weakref.WeakSet[_native.Job] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Other ranks may still need this one's packets.
    for job in list(_open):
        job.close()


def start(settings: dict[str, Any], meeting: Meeting) -> _native.Job:
    """Meet the other ranks, start the job, and say which address it uses."""
    global _has_warned
    use_default_handler()
    job = _native.start(settings, meeting)
    _open.add(job)
    address = job.address.rsplit(":", 1)[0]
    # One rank's line is enough.
    if job.rank == 0:
        logger.info(
            "%d ranks; rank 0 sends from %s (%s); deadline %g s",
            job.ranks,
            job.address,
            interface_of(address),
            job.deadline,
        )
        if is_loopback(address) and not _has_warned:
            _has_warned = True
            logger.warning(
                "all ranks are on one machine and use the loopback interface; for several machines set MASTER_ADDR "
                "to an address that all reach, or ULTIMA_INTERFACE"
            )
    return job


class Pending:
    """The result of an operation in progress."""

    def __init__(self, native: _native.Pending, result: Callable[[], Array]) -> None:
        self._native = native
        self._result = result
        self._outcome: _native.Outcome | None = None

    def wait(self) -> Array:
        """Wait for the result. Ctrl-C ends the wait; the operation continues."""
        self._outcome = self._native.wait()
        return self._result()

    def try_wait(self, seconds: float = 0.0) -> Array | None:
        """Return the result, or None if it is not there after `seconds`."""
        self._outcome = self._native.wait(seconds)
        return None if self._outcome is None else self._result()

    @property
    def outcome(self) -> _native.Outcome:
        """How the operation ended: its duration, its losses. Only after `wait`."""
        if self._outcome is None:
            raise SettingError("the operation is in progress: call wait() first")
        return self._outcome


class Job:
    """One rank's part in a job. Every rank makes the same calls in the same order.

    Without arguments, the environment says how the ranks meet: under torchrun at its store (`MASTER_ADDR`, `RANK` …),
    with `ULTIMA_CONTROLLER` and `ULTIMA_JOB` at the controller. With `rank` and `addresses` (one "IP:port" per rank,
    the same list everywhere) they meet without either.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        addresses: Sequence[str] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        if (rank is None) != (addresses is None):
            raise SettingError("rank and addresses: expected both or none")
        meeting = None if rank is None or addresses is None else (rank, list(addresses))
        self._native = start(complete(settings), meeting)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._native.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self._native.ranks

    @property
    def address(self) -> str:
        """The address and port that this rank sends from."""
        return self._native.address

    def all_reduce(self, values: Any) -> Array:
        """Return the mean over all ranks of what arrived before the deadline.

        `values` is a NumPy array, a list, or an object with DLPack or the buffer protocol, of 16, 32 or 64-bit floating
        point, with the same number of values on every rank. Ultima computes in 32 bits. The result has the same shape
        and type.
        """
        return self.all_reduce_async(values).wait()

    def all_reduce_async(self, values: Any, bucket: int | None = None) -> Pending:
        """Start `all_reduce`. Buckets of a step are in progress together; one that returns begins the next step.

        `bucket` is below 4095.
        """
        if bucket is not None and not (isinstance(bucket, int) and 0 <= bucket < _BUCKETS):
            raise SettingError(f"bucket is {bucket!r}: expected 0 to {_BUCKETS - 1}")
        array, dtype = _floats(values)
        return Pending(self._native.reduce(*_memory(array), bucket), lambda: array.astype(dtype, copy=False))

    def all_reduce_exact(self, values: Any) -> Array:
        """Return the mean over all ranks, with the same bits on every rank. Raise IncompleteError if a rank is gone."""
        return self.all_reduce_exact_async(values).wait()

    def all_reduce_exact_async(self, values: Any) -> Pending:
        """Start `all_reduce_exact`."""
        array, dtype = _floats(values)
        if dtype == np.float64:
            raise DtypeError("all_reduce_exact of float64: Ultima computes in 32 bits; convert the array to float32")
        native = self._native.exact(("mean", 0), _memory(array), _memory(array))
        return Pending(native, lambda: array.astype(dtype, copy=False))

    def broadcast(self, values: Any, root: int = 0) -> Array:
        """Return the values of rank `root`, bit by bit. On other ranks `values` says shape and type."""
        return self.broadcast_async(values, root).wait()

    def broadcast_async(self, values: Any, root: int = 0) -> Pending:
        """Start `broadcast`."""
        if not (isinstance(root, int) and 0 <= root < self.world_size):
            raise SettingError(f"root is {root!r}: expected a rank below {self.world_size}")
        array = _array(values)
        words, result = _words(array)
        native = self._native.exact(("broadcast", root), _memory(words), _memory(words))
        return Pending(native, lambda: result)

    def all_gather(self, values: Any) -> Array:
        """Return all ranks' values, in the order of ranks along a new first axis, bit by bit."""
        return self.all_gather_async(values).wait()

    def all_gather_async(self, values: Any) -> Pending:
        """Start `all_gather`."""
        array = _array(values)
        words, _ = _words(array)
        gathered = np.empty((self.world_size, words.size), np.float32)
        native = self._native.exact(("gather", 0), _memory(words), _memory(gathered))
        # Without the padding of each row.
        rows = gathered.view(np.uint8)[:, : array.nbytes]
        shape = (self.world_size, *array.shape)
        return Pending(native, lambda: np.ascontiguousarray(rows).reshape(-1).view(array.dtype).reshape(shape))

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        one = np.zeros(1, np.float32)
        self._native.exact(("barrier", 0), _memory(one), _memory(one)).wait()

    def set_loss_scale(self, scale: float) -> None:
        """Set the factor by which gradients are multiplied from the next call on. Matters with recycling only."""
        self._native.set_loss_scale(scale)

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline from the next `all_reduce` on, at most the one that the job was created with.

        Every rank calls this before the same `all_reduce`.
        """
        self._native.set_deadline(seconds)

    def close(self) -> None:
        """End the job when its operations have ended, and send what other ranks still need."""
        self._native.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _array(values: Any) -> Array:
    """Return `values` as an array, without a copy if possible."""
    if isinstance(values, np.ndarray):
        return values
    try:
        if hasattr(values, "__dlpack__"):
            return cast("Array", np.from_dlpack(values))
        return np.asarray(values)
    except (BufferError, TypeError, RuntimeError, ValueError) as error:
        raise DtypeError(
            f"{type(values).__name__} is not an array that NumPy reads ({error}): move it to the CPU, detach it, "
            "and convert it to float32"
        ) from error


def _floats(values: Any) -> tuple[Array, np.dtype[Any]]:
    """Return a copy in 32 bits, and the type of the result."""
    array = _array(values)
    if array.dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise DtypeError(f"{array.dtype} cannot be averaged: expected float16, float32 or float64")
    return np.array(array, np.float32, order="C"), array.dtype


def _words(array: Array) -> tuple[Array, Array]:
    """Return a copy in words of 32 bits, and that copy with the shape and type of `array`."""
    if array.dtype.hasobject:
        raise DtypeError(f"{array.dtype} has no fixed size: expected an array of numbers")
    words = np.zeros((array.nbytes + 3) // 4, np.float32)
    copy = words.view(np.uint8)[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return words, copy


def _memory(array: Array) -> tuple[int, int, object]:
    return array.ctypes.data, array.size, array


if hasattr(os, "register_at_fork"):
    # A fork has none of its parent's jobs to end.
    os.register_at_fork(after_in_child=_open.clear)
