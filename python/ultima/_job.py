"""Jobs: operations on NumPy arrays, and on everything that becomes one without a loss."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np

from . import _native
from ._errors import DtypeError, MismatchError, SettingError
from ._log import logger, use_default_handler
from ._network import interface_of, is_loopback
from ._settings import Settings, complete, number, silence_limit, whole
from ._stats import StepStats, Watch

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

    def __init__(
        self,
        native: _native.Pending,
        result: Callable[[], Array],
        note: Callable[[_native.Outcome], None] = lambda _: None,
    ) -> None:
        self._native = native
        self._result = result
        self._note = note
        self._outcome: _native.Outcome | None = None

    def wait(self) -> Array:
        """Wait for the result. Ctrl-C ends the wait; the operation continues."""
        return cast("Array", self._wait(None))

    def try_wait(self, seconds: float = 0.0) -> Array | None:
        """Return the result, or None if it is not there after `seconds`."""
        return self._wait(number("seconds", seconds))

    def _wait(self, seconds: float | None) -> Array | None:
        outcome = self._native.wait(seconds)
        if outcome is None:
            return None
        if self._outcome is None:
            self._outcome = outcome
            self._note(outcome)
        return self._result()

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
    the same list everywhere) they meet without either. If a rank is silent for `gone_after` seconds, in 20 operations
    or more, `all_reduce` raises `GoneError`. With None, the job continues without it.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        addresses: Sequence[str] | None = None,
        gone_after: float | None = 60.0,
        **settings: Unpack[Settings],
    ) -> None:
        if (rank is None) != (addresses is None):
            raise SettingError("rank and addresses: expected both or none")
        limit = silence_limit(gone_after)
        meeting = None
        if rank is not None and addresses is not None:
            if isinstance(addresses, str) or not all(isinstance(address, str) for address in addresses):
                raise SettingError(f'addresses is {addresses!r}: expected a list with an "IP:port" for every rank')
            meeting = whole("rank", rank, 0, len(addresses) - 1, f"0 to {len(addresses) - 1}"), list(addresses)
        self._native = start(complete(settings), meeting)
        self._watch = Watch(self.rank, self.world_size, limit)
        self._watched = -1
        self._lock = threading.Lock()

    def _note(self, outcome: _native.Outcome) -> None:
        """Watch the first bucket of each step that ends here."""
        with self._lock:
            if outcome.step > self._watched:
                self._watched = outcome.step
                step = StepStats(outcome.step, outcome.seconds)
                step.add(outcome)
                self._watch.add(step)

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
        if bucket is not None:
            bucket = whole("bucket", bucket, 0, _BUCKETS - 1, f"0 to {_BUCKETS - 1}")
        array, dtype = _floats(values)
        native = self._native.reduce(*_memory(array), bucket)
        return Pending(native, lambda: array.astype(dtype, copy=False), self._note)

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
        root = whole("root", root, 0, self.world_size - 1, f"a rank below {self.world_size}")
        array = _array(values)
        words, copy = _words(array)
        call = _Call(f"broadcast from rank {root}", array, "root, type or number of bytes")
        # The owner of each part takes the values of the root that it expects.
        framed = call.framed(words, self.world_size)
        native = self._native.exact(("broadcast", root), _memory(framed), _memory(framed))

        def result() -> Array:
            call.unframe(framed, words, self.world_size)
            return copy

        return Pending(native, result)

    def all_gather(self, values: Any) -> Array:
        """Return all ranks' values, in the order of ranks along a new first axis, bit by bit."""
        return self.all_gather_async(values).wait()

    def all_gather_async(self, values: Any) -> Pending:
        """Start `all_gather`."""
        array = _array(values)
        words, _ = _words(array)
        call = _Call("all_gather", array, "type or number of bytes")
        framed = call.framed(words, 1)
        gathered = np.empty((self.world_size, framed.size), np.uint32)
        native = self._native.exact(("gather", 0), _memory(framed), _memory(gathered))
        # Without the padding of each row.
        rows = gathered.view(np.uint8)[:, 4 : 4 + array.nbytes]
        shape = (self.world_size, *array.shape)

        def result() -> Array:
            for rank, row in enumerate(gathered):
                call.check(row[0], f"rank {rank}")
            return np.ascontiguousarray(rows).reshape(-1).view(array.dtype).reshape(shape)

        return Pending(native, result)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        one = np.zeros(1, np.float32)
        self._native.exact(("barrier", 0), _memory(one), _memory(one)).wait()

    def set_loss_scale(self, scale: float) -> None:
        """Set the factor by which gradients are multiplied from the next call on. Matters with recycling only."""
        self._native.set_loss_scale(number("scale", scale))

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline from the next `all_reduce` on, at most the one that the job was created with.

        Every rank calls this before the same `all_reduce`.
        """
        self._native.set_deadline(number("seconds", seconds))

    def close(self) -> None:
        """End the job when its operations have ended, and send what other ranks still need."""
        self._native.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _array(values: Any) -> Array:
    """Return `values` as an array, without a copy if possible."""
    if isinstance(values, np.ma.MaskedArray):
        raise DtypeError("a masked array has no value where it is masked: pass array.filled(0), for example")
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


class _Call:
    """What an exact operation moves. Its hash is sent with the values: other ranks may have made another call."""

    def __init__(self, name: str, array: Array, differing: str) -> None:
        self._text = f"{name} of {array.dtype}, {array.nbytes} bytes"
        self._differing = differing
        self._hash = zlib.crc32(f"{name} {array.dtype.str} {array.nbytes}".encode())

    def framed(self, words: Array, parts: int) -> Array:
        """Return `words` with the hash at the beginning of each part of the result."""
        framed = np.empty(words.size + parts, np.uint32)
        for start, end, part in _parts(words, parts):
            framed[start] = self._hash
            framed[start + 1 : end] = part
        return framed

    def unframe(self, framed: Array, words: Array, parts: int) -> None:
        """Copy to `words` what `framed` returns. Raise MismatchError if a hash differs."""
        for start, end, part in _parts(words, parts):
            self.check(framed[start], "another rank")
            part[...] = framed[start + 1 : end]

    def check(self, other: int, who: str) -> None:
        """Raise MismatchError if the hash of the rank `who` is another one."""
        if other != self._hash:
            raise MismatchError(
                f"{self._text}: {who} has another {self._differing}; all ranks must make the same calls in the same "
                "order"
            )


def _parts(words: Array, parts: int) -> Iterator[tuple[int, int, Array]]:
    """Return where each rank's part of framed words starts and ends, and the words in it."""
    bounds = [part * (words.size + parts) // parts for part in range(parts + 1)]
    for part, (start, end) in enumerate(zip(bounds, bounds[1:])):
        yield start, end, words.view(np.uint32)[start - part : end - part - 1]


def _memory(array: Array) -> tuple[int, int, object]:
    return array.ctypes.data, array.size, array


if hasattr(os, "register_at_fork"):
    # A fork has none of its parent's jobs to end.
    os.register_at_fork(after_in_child=_open.clear)
