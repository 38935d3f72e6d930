"""The way of CUDA tensors: to pinned memory on a stream of their own, and back."""

import collections
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, Optional, TypeVar

import torch

_Place = TypeVar("_Place")


class Staging(Generic[_Place]):
    """Copies between GPUs and pinned memory. Neither the caller nor its streams wait for a copy to the CPU.

    Args:
        begin: Starts the AllReduce of values in the CPU's memory: place, future, values, buffer.

    """

    def __init__(
        self, begin: "Callable[[_Place, torch.futures.Future[Any], torch.Tensor, torch.Tensor], None]"
    ) -> None:
        self._begin = begin
        self._streams: dict[torch.device, Any] = {}
        # By the number of values. Memory is free once its copy to the GPU is in the stream: the next copy is behind it.
        self._free: dict[tuple[torch.device, int], list[torch.Tensor]] = collections.defaultdict(list)
        # None ends the thread.
        self._copies: queue.SimpleQueue[Optional[tuple[Any, ...]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._start, name="ultima-copies", daemon=True)
        self._thread.start()

    def begin(self, place: _Place, buffer: torch.Tensor) -> "torch.futures.Future[Any]":
        """Start the copy of a bucket; its AllReduce starts when the copy is there."""
        device = buffer.device
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[device])
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream = self._streams[device]
        free = self._free[device, buffer.numel()]
        values = free.pop() if free else torch.empty(buffer.numel(), dtype=torch.float32, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            values.view(buffer.shape).copy_(buffer, non_blocking=True)
            buffer.record_stream(stream)
            # A thread that waits for a blocking event leaves the core to others.
            copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            copied.record(stream)
        self._copies.put((copied, place, future, values, buffer))
        return future

    def _start(self) -> None:
        """Start the AllReduces whose values are there, in the order of buckets."""
        while (copy := self._copies.get()) is not None:
            copied, place, future, values, buffer = copy
            try:
                copied.synchronize()
                self._begin(place, future, values, buffer)
            except Exception as error:
                future.set_result(error)

    def end(self, future: "torch.futures.Future[Any]", values: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy the mean back; DDP's stream waits for the copy."""
        with torch.cuda.stream(self._streams[buffer.device]):
            mean = values.view(buffer.shape)
            if buffer.dtype != torch.float32:
                # Torch would convert on the CPU.
                mean = mean.to(buffer.device, non_blocking=True)
            buffer.copy_(mean, non_blocking=True)
            self._free[buffer.device, buffer.numel()].append(values)
            future.set_result(buffer)

    def close(self, seconds: float) -> None:
        """End the thread, and wait so long for it."""
        self._copies.put(None)
        self._thread.join(seconds)
