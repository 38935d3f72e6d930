"""What one rank does in the tests of `ultima.Job`."""

from __future__ import annotations

import array
import importlib.metadata
import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import ultima

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MEAN = (RANKS - 1) / 2


def name(error: BaseException) -> list[str]:
    """Return an exception's class and message."""
    return [type(error).__name__, str(error)]


def raised(call: Any) -> list[str]:
    """Return the exception of `call`."""
    try:
        call()
    except ultima.Error as error:
        return name(error)
    return ["none", ""]


def child_of(job: ultima.Job) -> int:
    """Return the exit code of a fork that uses the job: 7 if it is refused."""
    child = os.fork()
    if child == 0:
        job.close()
        refused = raised(lambda: job.all_reduce([1.0]))
        # As an ordinary process ends, with its exit handlers.
        sys.stdout = open(os.devnull, "w")
        sys.exit(7 if refused[0] == "ForkError" else 8)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def floats_of(rank: int) -> Any:
    """Return a thousand values that depend on the rank."""
    return np.full(1000, rank, np.float32)


def operations() -> dict[str, Any]:
    """Run every operation, and return what was wrong."""
    report: dict[str, Any] = {"wrong": []}

    def check(what: str, is_right: Any) -> None:
        if not is_right:
            report["wrong"].append(what)

    check("version", ultima.__version__ == importlib.metadata.version("ultima"))
    with ultima.Job(deadline=60.0, learning=False) as job:
        check("rank", (job.rank, job.world_size) == (RANK, RANKS))
        for dtype in (np.float16, np.float32, np.float64):
            values = np.full((50, 30), RANK, dtype)[::2, ::3]
            mean = job.all_reduce(values)
            check(f"all_reduce of {dtype}", mean.dtype == dtype and mean.shape == (25, 10))
            check(f"mean of {dtype}", np.allclose(mean, MEAN, atol=1e-3))
            check(f"input of {dtype}", np.all(values == RANK))
        swapped = np.full(3, RANK, np.dtype(np.float32).newbyteorder())
        check("the other byte order", np.allclose(job.all_reduce(swapped), MEAN, atol=1e-3))
        check("a list", np.allclose(job.all_reduce([float(RANK)] * 7), MEAN, atol=1e-5))
        check("a buffer", np.allclose(job.all_reduce(array.array("f", [RANK] * 9)), MEAN, atol=1e-5))
        check("NumPy's bucket", np.allclose(job.all_reduce_async(floats_of(RANK), np.int64(2)).wait(), MEAN, atol=1e-3))
        check("NumPy's root", job.broadcast(floats_of(RANK), np.int32(1))[0] == 1)
        check("nothing", job.all_reduce(np.zeros(0, np.float32)).size == 0)
        # Buckets in progress together, finished in another order.
        pending = [job.all_reduce_async(np.full(5000 + b, RANK + b, np.float32), b) for b in range(4)]
        for bucket in (3, 1, 0, 2):
            check(f"bucket {bucket}", np.allclose(pending[bucket].wait(), MEAN + bucket, atol=1e-3))
        check("one step", len({p.outcome.step for p in pending}) == 1)
        check("outcome", pending[0].outcome.closed_by == "complete" and pending[0].outcome.lost_share == 0)
        check("again", np.allclose(pending[0].wait(), MEAN, atol=1e-3))
        later = job.all_reduce_async(floats_of(RANK))
        while (polled := later.try_wait(0.01)) is None:
            pass
        check("try_wait", np.allclose(polled, MEAN, atol=1e-3))

        # A deadline far away, and one above that of the start.
        for deadline, expected in ((30.0, 30.0), (90.0, 60.0)):
            job.set_deadline(deadline)
            bounded = job.all_reduce_async(floats_of(RANK))
            check(f"deadline {deadline}", np.allclose(bounded.wait(), MEAN, atol=1e-3))
            check(f"deadline {deadline} of the outcome", bounded.outcome.deadline == expected)

        random = np.random.default_rng(RANK)
        floats = random.standard_normal(3001).astype(np.float32)
        exact = job.all_reduce_exact(floats)
        everyone = job.all_gather(floats)
        expected = everyone[0]
        for other in everyone[1:]:
            expected = expected + other
        check("exact mean", np.array_equal(exact, expected / np.float32(RANKS)))
        check("own row", np.array_equal(everyone[RANK], floats))
        # All bits of all types, negative zeros and NaNs among them.
        for sent in (random.integers(0, 256, 4003, np.uint8), random.integers(0, 2**63, (3, 5)), floats > 0):
            got = job.broadcast(sent, root=RANKS - 1)
            rows = job.all_gather(sent)
            check(f"types of {sent.dtype}", got.dtype == sent.dtype and rows.dtype == sent.dtype)
            check(f"broadcast of {sent.dtype}", got.tobytes() == rows[RANKS - 1].tobytes())
            check(f"gather of {sent.dtype}", rows[RANK].tobytes() == sent.tobytes())
        special = np.array([-0.0, np.nan, -np.inf, 1e-45], np.float32)
        check("special values", job.broadcast(special).tobytes() == special.tobytes())
        job.barrier()

        report["refused"] = {
            "integers": raised(lambda: job.all_reduce(np.zeros(3, np.int64))),
            "masked": raised(lambda: job.all_reduce(np.ma.masked_array(floats, floats > 1))),
            "masked gather": raised(lambda: job.all_gather(np.ma.masked_array(floats, floats > 1))),
            "object": raised(lambda: job.all_reduce(object())),
            "exact float64": raised(lambda: job.all_reduce_exact(np.zeros(3))),
            "root": raised(lambda: job.broadcast(floats, root=RANKS)),
            "setting": raised(lambda: ultima.Job(deadlin=1.0)),
            "deadline": raised(lambda: ultima.Job(deadline=-1.0)),
            "no deadline": raised(lambda: job.set_deadline(0.0)),
            "wire": raised(lambda: ultima.Job(wire="f8")),
            "wire's type": raised(lambda: ultima.Job(wire=np.float32)),
            "rate's type": raised(lambda: ultima.Job(rate=1.5)),
            "rate": raised(lambda: ultima.Job(rate=0)),
            "slow": raised(lambda: ultima.Job(rate=1)),
            "slot": raised(lambda: ultima.Job(slot_bytes=6)),
            "odd slot": raised(lambda: ultima.Job(slot_bytes=66)),
            "small slot": raised(lambda: ultima.Job(slot_bytes=4)),
            "true deadline": raised(lambda: ultima.Job(deadline=True)),
            "true seed": raised(lambda: ultima.Job(seed=True)),
            "small factor": raised(lambda: ultima.Job(deadline_factor=0.9)),
            "unlearned": raised(lambda: ultima.Job(deadline_factor=1.5, learning=False)),
            "no silence": raised(lambda: ultima.Job(gone_after=0)),
            "rank's type": raised(lambda: ultima.Job(rank="0", addresses=["127.0.0.1:9", "127.0.0.1:10"])),
            "negative rank": raised(lambda: ultima.Job(rank=-1, addresses=["127.0.0.1:9", "127.0.0.1:10"])),
            "an address": raised(lambda: ultima.Job(rank=0, addresses="127.0.0.1:9")),
            "wait's type": raised(lambda: later.try_wait("x")),
            "set deadline's type": raised(lambda: job.set_deadline("x")),
            "scale's type": raised(lambda: job.set_loss_scale("x")),
            "true root": raised(lambda: job.broadcast(floats, root=True)),
            "true bucket": raised(lambda: job.all_reduce_async(floats, True)),
            "switch's type": raised(lambda: ultima.Job(hadamard=1)),
            "deadline's type": raised(lambda: ultima.Job(deadline="0.5")),
            "negative seed": raised(lambda: ultima.Job(seed=-1)),
            "root's type": raised(lambda: job.broadcast(floats, root="a")),
            "bucket": raised(lambda: job.all_reduce_async(floats, 4095)),
            "negative wait": raised(lambda: later.try_wait(-1)),
        }
        report["fork"] = child_of(job)
        job.barrier()
    report["closed"] = raised(lambda: job.all_reduce(floats))
    return report


def deadline_factor() -> list[float]:
    """Return the deadlines of AllReduces of a job with a deadline factor."""
    with ultima.Job(deadline=60.0, deadline_factor=20.0, recycling=True) as job:
        deadlines = []
        for _ in range(30):
            pending = job.all_reduce_async(floats_of(RANK))
            pending.wait()
            deadlines.append(pending.outcome.deadline)
        return deadlines


def lengths() -> list[Any]:
    """Return the exceptions of calls with another length on each rank."""
    with ultima.Job(exact_timeout=1.0) as job:
        own = np.ones(2000 + 1000 * RANK, np.float32)
        refused = [raised(lambda: job.all_reduce(own)), raised(lambda: job.all_reduce_exact(own))]
        pending = [job.all_reduce_async(own, bucket) for bucket in range(2)]
        return [*refused, raised(lambda: [each.wait() for each in pending])]


def almost_equal_lengths() -> list[Any]:
    """Return the exceptions of means whose lengths differ, but need as many packets."""
    with ultima.Job(deadline=0.5, learning=False) as job:
        return [raised(lambda n=n: job.all_reduce(np.ones(n + RANK, np.float32))) for n in (3, 10, 1024, 2000)]


def different_calls() -> list[Any]:
    """Return the exceptions of exact operations with another root, type or number of bytes on each rank."""
    with ultima.Job(exact_timeout=5.0) as job:
        values = np.full(5, RANK + 1, np.float32)
        integers = np.arange(5, dtype=[np.int32, np.float32][RANK])
        calls = [
            lambda: job.broadcast(values, root=RANK),
            lambda: job.broadcast(np.arange(500_000), root=RANK),
            lambda: job.broadcast(integers),
            lambda: job.broadcast(np.arange(5 + RANK, dtype=np.int8)),
            lambda: job.all_gather(integers),
            lambda: job.all_gather(np.arange(5 + RANK, dtype=np.int8)),
        ]
        return [raised(call) for call in calls]


def gone() -> dict[str, Any]:
    """Return what the others see of a job whose last rank ends. `SETTINGS` has the settings."""
    # A busy machine may silence the other rank, too, for a while.
    job = ultima.Job(deadline=0.6, learning=False, **json.loads(os.environ["SETTINGS"]))
    values = np.full(1000, float(RANK), np.float32)
    for step in range(100):
        if RANK == RANKS - 1 and step == 3:
            os._exit(0)
        pending = job.all_reduce_async(values)
        error = raised(pending.wait)
        if error[0] != "none" and RANKS == 2:
            return {"error": error}
        if error[0] != "none":
            # The result is there nevertheless, and the next operation fails, too.
            mean = pending.wait()
            return {"error": error, "mean": mean.size, "again": raised(lambda: job.all_reduce(values))[0]}
        # The step's other work.
        time.sleep(0.02)
    outcome = pending.outcome
    return {"error": error, "silent": outcome.silent, "missed": [outcome.missed, sum(outcome.lost.values())]}


def rendezvous() -> list[str]:
    """Start a job, and return the exception. `SETTINGS` has this rank's settings."""
    settings = json.loads(os.environ.get("SETTINGS", "{}"))
    try:
        ultima.Job(timeout=float(os.environ.get("LIMIT", "30")), **settings).close()
    except ultima.Error as error:
        return name(error)
    return ["none", ""]


def interrupted() -> list[Any]:
    """Wait for a rank that never comes, and return what ends that."""
    # A shell's background job ignores it, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    try:
        print("waiting", flush=True)
        ultima.Job(timeout=200.0)
    except KeyboardInterrupt as error:
        return [type(error).__name__, time.monotonic() - began]
    return ["none", 0]


def interrupted_job() -> list[Any]:
    """Wait for a late rank, with an interrupt where `HOW` says. Return it, and how long the end of the job takes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = ultima.Job(exact_timeout=200.0)
    try:
        # The interrupt may come before the barrier begins.
        print("ready", flush=True)
        if RANK == 1:
            signal.pause()
        if os.environ["HOW"] == "wait":
            job.barrier()
        job.all_gather_async(floats_of(RANK))
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        if os.environ["HOW"] == "uncaught":
            raise
        began = time.monotonic()
        job.close()
        return [type(error).__name__, time.monotonic() - began]
    return ["none", 0]


def killed() -> dict[str, Any]:
    """Return what the others see of a job whose last rank waits to be killed."""
    job = ultima.Job(deadline=0.3, learning=False, exact_timeout=3.0)
    values = np.full(10_000, float(RANK), np.float32)
    before = float(job.all_reduce(values)[0])
    job.barrier()
    print("ready", flush=True)
    if RANK == RANKS - 1:
        signal.pause()
    pending = [job.all_reduce_async(values) for _ in range(6)]
    means = [float(np.mean(p.wait())) for p in pending]
    # One by one: on a busy machine, the other rank may be late for some operations.
    for _ in range(10):
        pending.append(job.all_reduce_async(values))
        means.append(float(np.mean(pending[-1].wait())))
    return {
        "before": before,
        "after": [(p.outcome.silent, mean) for p, mean in zip(pending, means)],
        "exact": raised(lambda: job.all_reduce_exact(values)),
    }
