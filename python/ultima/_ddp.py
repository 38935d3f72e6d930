"""The communication hook of DistributedDataParallel."""

# No `from __future__ import annotations`: DDP compares the hook's annotations with types.

import atexit
import collections
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from . import _backend, _job, _native
from ._cuda import Staging
from ._errors import DtypeError, Error, RendezvousError, SettingError
from ._rendezvous import default_store, local_address, prefix_of
from ._settings import Settings, complete, number, silence_limit
from ._stats import REPLICAS, StepStats, Watch, publish

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Steps that `State.stats` returns at most.
_STEPS = 1000
# Seconds to wait for the other ranks' addresses.
_TIMEOUT = 300.0
# Seconds to wait at most for the end of a state's threads, which have nothing left to do then.
_JOIN = 10.0

_open: "weakref.WeakSet[State]" = weakref.WeakSet()

_backend.register()


@atexit.register
def _close_all() -> None:
    # A thread must not be inside torch while the interpreter ends.
    for state in list(_open):
        state.close()


class _Place(NamedTuple):
    """A bucket's place in its step."""

    # Equal in every step.
    key: int
    is_first: bool
    is_last: bool


class _Operation(NamedTuple):
    """An AllReduce of a bucket in progress."""

    pending: _native.Pending
    future: "torch.futures.Future[Any]"
    # The bucket's own memory, or a copy of it in 32 bits.
    values: torch.Tensor
    buffer: torch.Tensor
    is_last: bool


class State:
    """What `allreduce_hook` needs: a job among the ranks of a process group. Use one for each model.

    Create it on every rank of the group, after `init_process_group`. The ranks meet at the group's store, or at the
    controller if `ULTIMA_CONTROLLER` and `ULTIMA_JOB` are set.

    Args:
        process_group: The ranks that average gradients, or a mesh of one dimension. Default: all.
        scaler: AMP's `GradScaler`, if there is one. Matters with `recycling` only.
        gone_after: Seconds of a rank's silence, in 20 steps or more, after which `backward` raises `GoneError`. With
            None, training continues without the rank.
        settings: See `Settings`.

    """

    def __init__(
        self,
        process_group: Any = None,
        *,
        scaler: Any = None,
        gone_after: Optional[float] = 60.0,
        **settings: "Unpack[Settings]",
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RendezvousError("there is no process group: call torch.distributed.init_process_group first")
        group: Any = dist.group.WORLD if process_group is None else process_group
        if hasattr(group, "mesh_dim_names"):
            if group.ndim != 1:
                raise SettingError(f"process_group is {group}: expected one dimension of it, such as mesh['replicate']")
            group = group.get_group()
        try:
            self.rank: int = dist.get_rank(group)
            self.world_size: int = dist.get_world_size(group)
        except (RuntimeError, TypeError, ValueError):
            raise SettingError(
                f"process_group is {process_group!r}: expected a group of torch.distributed.new_group, a mesh of one "
                "dimension, or None"
            ) from None
        limit = silence_limit(gone_after)
        if self.rank < 0:
            raise SettingError("this process is not in process_group: create the State on its ranks only")
        self._scaler = scaler
        self._recycling = bool(settings.get("recycling"))
        # One rank has no one to average with.
        self._native = _start(group, self.rank, self.world_size, complete(settings)) if self.world_size > 1 else None
        self._watch = Watch(self.rank, self.world_size, limit, REPLICAS)
        self._steps: collections.deque[StepStats] = collections.deque(maxlen=_STEPS)
        self._step: Optional[StepStats] = None
        self._began = 0.0
        self._failure: Optional[Error] = None
        self._buckets: dict[tuple[int, int], int] = {}
        # Parts of an FSDP2 model whose gradients this backward has averaged.
        self._parts: set[int] = set()
        # None ends the thread.
        self._operations: queue.SimpleQueue[Optional[_Operation]] = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._staging: Optional[Staging[_Place]] = None
        _open.add(self)

    def __deepcopy__(self, _memo: "dict[int, Any]") -> "State":
        # A copy of a model with this hook, such as an average of models, has the same ranks.
        return self

    def __reduce__(self) -> "tuple[Any, ...]":
        return _Saved, ()

    def stats(self) -> list[StepStats]:
        """Return the statistics of the last steps, up to 1,000, the newest last."""
        return list(self._steps)

    def close(self) -> None:
        """End the job. The state cannot be used any more."""
        if self._native is not None:
            self._native.close()
        if self._staging is not None:
            self._staging.close(_JOIN)
        if self._thread is not None:
            self._operations.put(None)
            self._thread.join(_JOIN)
            self._thread = None
        self._staging = None

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline from the next step on, at most the one that the state was created with.

        Every rank calls this between the same two steps. `stats` shows the time that a step usually takes.
        """
        seconds = number("seconds", seconds)
        if self._native is not None:
            self._native.set_deadline(seconds)

    def set_multicast(self, multicast: bool) -> None:
        """Choose how this rank sends its results from the next step on: by the switch's multicast, or to each rank.

        The first is the default where the controller's job has it. Raises SettingError where it does not.
        """
        if self._native is not None:
            self._native.set_multicast(multicast)

    def average(self, tensors: "Iterable[torch.Tensor]") -> None:
        """Replace tensors, such as a model's parameters, by their exact mean over all ranks, in 32 bits.

        Replicas that losses have made different are equal afterwards. Every rank calls this between the same two steps.
        Raises IncompleteError if a rank is gone.
        """
        tensors = list(tensors)
        if self._native is None or not tensors:
            return
        for tensor in tensors:
            if tensor.dtype not in _FLOATS or tensor.dtype == torch.float64:
                raise DtypeError(f"average of {tensor.dtype}: expected float32, float16 or bfloat16")
        with torch.no_grad():
            values = torch.cat([tensor.reshape(-1).float().cpu() for tensor in tensors])
            memory = (values.data_ptr(), values.numel(), values)
            self._native.exact(("mean", 0), memory, memory).wait()
            for tensor in tensors:
                tensor.copy_(values[: tensor.numel()].view_as(tensor))
                values = values[tensor.numel() :]

    def replicate(self, model: torch.nn.Module) -> None:
        """Average the gradients of a model that FSDP2 has sharded: HSDP, with this state for the replicate dimension.

        Create the state with the replicate dimension's process group, and call `fully_shard` with the shard dimension's
        mesh alone. Needs a torch with `set_all_reduce_hook`.
        """
        parts: list[Any] = [part for part in model.modules() if hasattr(part, "set_all_reduce_hook")]
        if not parts:
            raise SettingError("no part of the model is sharded by FSDP2: call fully_shard first")
        for index, part in enumerate(parts):
            part.set_all_reduce_hook(functools.partial(self._reduce_part, index))

    def _reduce_part(self, number: int, gradients: torch.Tensor) -> None:
        """Average the gradients of part `number` of a sharded model.

        A part without gradients is not called, so only the end of the backward ends the step.
        """
        if number in self._parts:
            # The last backward failed.
            self._parts.clear()
        is_first = not self._parts
        if is_first:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        self._parts.add(number)
        self._reduce(_Place(number, is_first, False), gradients).wait()

    def _end_backward(self) -> None:
        self._parts.clear()
        try:
            self._end_step()
        except Error as error:
            self._failure = error
            raise

    def reduce(self, index: int, buffer: torch.Tensor, is_last: bool) -> "torch.futures.Future[torch.Tensor]":
        """Average `buffer`, bucket `index` of the step, in place. Every rank calls this in the same order."""
        return self._reduce(_Place(index, index == 0, is_last), buffer)

    def _reduce(self, place: _Place, buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
        if self._failure is not None:
            raise self._failure
        if buffer.dtype not in _FLOATS or buffer.layout != torch.strided:
            raise DtypeError(
                f"{buffer.dtype}, {buffer.layout} cannot be averaged: expected dense gradients of a floating-point type"
            )
        if self._native is None:
            alone: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            alone.set_result(buffer)
            return alone
        if self._thread is None:
            # Without a reference to this state, so that it ends when nobody has one any more.
            work = (weakref.ref(self), self._operations)
            self._thread = threading.Thread(target=_complete, args=work, name="ultima-futures", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._operations.put, None)
        if buffer.is_cuda:
            if self._staging is None:
                self._staging = Staging(self._begin)
            future = self._staging.begin(place, buffer)
        elif buffer.device.type == "cpu":
            values = buffer if buffer.dtype == torch.float32 and buffer.is_contiguous() else buffer.float().contiguous()
            future = torch.futures.Future()
            self._begin(place, future, values, buffer)
        else:
            raise DtypeError(f"gradients on {buffer.device}: expected the CPU or a CUDA device")
        return future.then(_value)

    def _begin(
        self, place: _Place, future: "torch.futures.Future[Any]", values: torch.Tensor, buffer: torch.Tensor
    ) -> None:
        """Start the AllReduce of `values`, which are in the CPU's memory."""
        assert self._native is not None
        if place.is_first:
            self._native.begin_step()
            self._began = time.monotonic()
            if self._scaler is not None and self._recycling:
                self._native.set_loss_scale(self._scaler.get_scale())
        # DDP rebuilds its buckets after the first step. With recycling a bucket keeps its length, so a bucket of
        # another length has another number. All ranks see them in the same order.
        bucket = self._buckets.setdefault((place.key, values.numel()), len(self._buckets))
        pending = self._native.reduce(values.data_ptr(), values.numel(), values, bucket)
        self._operations.put(_Operation(pending, future, values, buffer, place.is_last))

    def _complete(self, operation: _Operation) -> None:
        """Complete the future of an operation when it has ended."""
        try:
            outcome = operation.pending.wait()
            assert outcome is not None
            self._note(outcome, operation.is_last)
            if operation.buffer.is_cuda:
                assert self._staging is not None
                self._staging.end(operation.future, operation.values, operation.buffer)
                return
            if operation.values is not operation.buffer:
                operation.buffer.copy_(operation.values)
            operation.future.set_result(operation.buffer)
        except Exception as error:
            if isinstance(error, Error):
                self._failure = error
            # `_value` raises it: only then does DDP see an error with its message.
            operation.future.set_result(error)

    def _note(self, outcome: _native.Outcome, is_last: bool) -> None:
        """Add an outcome to the statistics."""
        if self._step is None or self._step.step != outcome.step:
            self._step = StepStats(outcome.step)
        self._step.add(outcome)
        if is_last:
            self._end_step()

    def _end_step(self) -> None:
        """Record the step whose buckets have ended."""
        step, self._step = self._step, None
        if step is None:
            return
        step.seconds = time.monotonic() - self._began
        self._steps.append(step)
        publish(self, step)
        self._watch.add(step)


def _complete(reference: "weakref.ref[State]", operations: "queue.SimpleQueue[Optional[_Operation]]") -> None:
    """Complete futures in the order of buckets, which is the one in which DDP waits for them."""
    while (operation := operations.get()) is not None:
        state = reference()
        if state is None:
            return
        state._complete(operation)
        del state, operation


class _Saved:
    """What a file has in the place of a `State`, whose job ends with its process."""

    def reduce(self, *_: Any) -> Any:
        raise SettingError(
            "this model was saved with its communication hook: wrap its module in DistributedDataParallel again, and "
            "register the hook with a new ultima.State()"
        )


def _value(future: "torch.futures.Future[Any]") -> Any:
    """Return the future's value, or raise it if it is an error."""
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def _start(group: Any, rank: int, ranks: int, settings: dict[str, Any]) -> _native.Job:
    """Start the job of a process group."""
    # A rank that fails later leaves the others alone at the store.
    _native.check(settings)
    if os.environ.get("ULTIMA_CONTROLLER"):
        return _job.start(settings, ranks)
    store = default_store()
    try:
        if settings["interface"] is None and "ULTIMA_INTERFACE" not in os.environ:
            # What the user has told Gloo is right for Ultima too.
            settings["interface"] = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None
        prefix = prefix_of(group)
        address = local_address(store, prefix, rank, ranks, settings["timeout"] or _TIMEOUT)
        return _job.start(settings, (store, rank, ranks, prefix, address))
    except BaseException:
        store.cancel()
        raise


def allreduce_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """Average a bucket of gradients over all ranks, by the deadline. For `model.register_comm_hook`."""
    if not isinstance(state, (State, _Saved)):
        raise SettingError(
            f"the hook's state is {state!r}: expected model.register_comm_hook(ultima.State(), ultima.allreduce_hook)"
        )
    return state.reduce(bucket.index(), bucket.buffer(), bucket.is_last())
