"""One rank of `ultima bench`: does what the bench asks for, one JSON object per line of a Unix socket.

    worker.py SOCKET torch RANK RANKS ADDRESS     # Gloo, TAR and Ultima; the ranks meet at rank 0's address
    worker.py SOCKET mpi                          # Open MPI, under mpirun
"""

import gzip
import json
import os
import resource
import socket
import sys
import time
from datetime import timedelta

TIMEOUT = timedelta(minutes=10)
TESTED = 360
BATCH = 32
ULTIMA = ["ultima-multicast", "ultima-unicast"]


def cpu():
    """Seconds of CPU time of all threads so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Torch:
    """Collectives on torch's tensors."""

    def __init__(self, rank, ranks, address):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.ranks = rank, ranks
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        method = f"tcp://{address}:29500"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks, timeout=TIMEOUT)
        # Connects all pairs of ranks.
        dist.all_reduce(torch.ones(1))
        # Ultima's, one for each training in turns.
        self.states = []
        # By method and number of the training.
        self.models = {}

    def join(self, job, settings):
        """Start Ultima's part in another job of the controller, for all its methods."""
        import ultima

        os.environ["ULTIMA_JOB"] = job
        self.states.append(ultima.State(**settings))
        return {}

    def state_of(self, method, training=0):
        """Return Ultima's state of a training, set for this method, or None for a method of others."""
        if method not in ULTIMA:
            return None
        state = self.states[training]
        state.set_multicast(method == "ultima-multicast")
        return state

    def leave(self):
        """End Ultima's jobs."""
        self.models.clear()
        for state in self.states:
            state.close()
        self.states.clear()
        return {}

    def fill(self, elements):
        """Return values to average, which depend on the rank, and their mean over all ranks."""
        base = self.torch.arange(elements, dtype=self.torch.float32) % 97 + 1
        return base * (self.rank + 1), base * ((self.ranks + 1) / 2)

    def reduce(self, method, values, scratch):
        """Replace `values` by the sum over all ranks; Ultima by the mean."""
        if method in ULTIMA:
            from ultima._ddp import _Place

            # A bucket for each method, because each learns its own times.
            self.states[0]._reduce(_Place(ULTIMA.index(method), True, True), values).wait()
        elif method == "gloo-ring":
            self.dist.all_reduce(values)
        elif method == "halving-doubling":
            self.halving_doubling(values, scratch)
        else:
            self.transpose(values, scratch)

    def halving_doubling(self, values, scratch):
        """Halve recursively while reducing, then double while gathering (Rabenseifner 2004), for 2^n ranks."""
        low, high = 0, values.numel()
        distance, steps = self.ranks // 2, []
        while distance:
            peer, middle = self.rank ^ distance, (low + high) // 2
            halves = [slice(low, middle), slice(middle, high)]
            mine, theirs = halves if self.rank < peer else halves[::-1]
            received = scratch[: mine.stop - mine.start]
            self.exchange([(values[theirs], peer)], [(received, peer)])
            values[mine] += received
            steps.append((peer, mine, theirs))
            low, high, distance = mine.start, mine.stop, distance // 2
        for peer, mine, theirs in reversed(steps):
            self.exchange([(values[mine], peer)], [(values[theirs], peer)])

    def transpose(self, values, scratch):
        """Send shard j of all ranks to rank j, which adds them, and gather the sums: TAR, over Gloo's TCP."""
        shards = values.tensor_split(self.ranks)
        own = shards[self.rank]
        # In the order of rounds: each rank sends to another one in each.
        to = [(self.rank + step) % self.ranks for step in range(1, self.ranks)]
        sources = [(self.rank - step) % self.ranks for step in range(1, self.ranks)]
        received = scratch[: own.numel() * len(sources)].view(len(sources), -1)
        self.exchange([(shards[rank], rank) for rank in to], list(zip(received, sources)))
        own += received.sum(0)
        self.exchange([(own, rank) for rank in to], [(shards[rank], rank) for rank in sources])

    def exchange(self, sent, received):
        """Send and receive at once, and wait for all."""
        requests = [self.dist.irecv(values, rank) for values, rank in received]
        requests += [self.dist.isend(values, rank) for values, rank in sent]
        for request in requests:
            request.wait()

    def run(self, method, bytes, count):
        """Time operations, and compare the last result with the exact one."""
        source, mean = self.fill(bytes // 4)
        values, scratch = self.torch.empty_like(source), self.torch.empty_like(source)
        state = self.state_of(method)
        seen = last_step(state)
        seconds, used = [], 0.0
        for _ in range(count):
            values.copy_(source)
            used -= cpu()
            start = time.perf_counter()
            self.reduce(method, values, scratch)
            seconds.append(time.perf_counter() - start)
            used += cpu()
        if state is None:
            values /= self.ranks
        error = ((values - mean).abs().max() / mean.abs().max()).item()
        steps = [step for step in state.stats() if step.step > seen] if state else []
        return {"seconds": seconds, "cpu": used, "error": error, **lost(steps)}

    def model(self, method, training, seed, digits):
        """Make a model, equal on all ranks and for all methods."""
        torch = self.torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        with gzip.open(digits, "rt") as lines:
            rows = torch.tensor([[float(pixel) for pixel in line.split(",")] for line in lines])
        torch.manual_seed(seed)
        rows = rows[torch.randperm(len(rows))]
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))  # fmt: skip
        model = DistributedDataParallel(net)
        if method in ULTIMA:
            import ultima

            model.register_comm_hook(self.states[training], ultima.allreduce_hook)
        self.models[method, training] = {
            "images": rows[:, :64].reshape(-1, 1, 8, 8) / 16,
            "digits": rows[:, 64].long(),
            "model": model,
            "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
            "order": torch.Generator().manual_seed(seed),
        }
        return {"bytes": 4 * sum(parameter.numel() for parameter in net.parameters())}

    def train(self, method, training, count):
        """Time steps of training, and test the model after them."""
        torch = self.torch
        parts = self.models[method, training]
        images, digits, model, optimizer = (parts[name] for name in ("images", "digits", "model", "optimizer"))
        state = self.state_of(method, training)
        seen = last_step(state)
        seconds, used = [], 0.0
        for _ in range(count):
            # The same batches on all ranks, of which each takes its part.
            drawn = torch.randint(TESTED, len(images), (BATCH * self.ranks,), generator=parts["order"])
            mine = drawn[self.rank :: self.ranks]
            used -= cpu()
            start = time.perf_counter()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            used += cpu()
        with torch.no_grad():
            right = (model.module(images[:TESTED]).argmax(1) == digits[:TESTED]).sum().item()
        steps = [step for step in state.stats() if step.step > seen] if state else []
        return {"seconds": seconds, "cpu": used, "accuracy": right / TESTED, **lost(steps)}


def last_step(state):
    """Return the number of the last step that Ultima has statistics of, or -1."""
    steps = state.stats() if state else []
    return steps[-1].step if steps else -1


def lost(steps):
    """The last deadline of Ultima's steps at this rank, and what became of their packets."""
    causes = {}
    for step in steps:
        for cause, packets in step.lost.items():
            causes[cause] = causes.get(cause, 0) + packets
    deadline = steps[-1].deadline if steps else None
    return {"deadline": deadline, "owed": sum(step.owed for step in steps), "lost": causes}


class Mpi:
    """Open MPI's AllReduce, on NumPy's arrays."""

    def __init__(self):
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.rank, self.ranks = self.world.Get_rank(), self.world.Get_size()
        # Connects.
        self.world.allreduce(1)

    def run(self, method, bytes, count):
        """Time operations, and compare the last result with the exact one."""
        import numpy

        base = numpy.arange(bytes // 4, dtype=numpy.float32) % 97 + 1
        source, expected = base * (self.rank + 1), base * (self.ranks * (self.ranks + 1) / 2)
        values = numpy.empty_like(source)
        seconds, used = [], 0.0
        for _ in range(count):
            values[:] = source
            used -= cpu()
            start = time.perf_counter()
            self.world.Allreduce(self.mpi.IN_PLACE, values)
            seconds.append(time.perf_counter() - start)
            used += cpu()
        error = float(abs(values - expected).max() / expected.max())
        return {"seconds": seconds, "cpu": used, "error": error, **lost([])}


def main():
    """Serve the bench until it closes the connection."""
    path, kind, *rest = sys.argv[1:]
    worker = Mpi() if kind == "mpi" else Torch(int(rest[0]), int(rest[1]), rest[2])
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as stream:
            print(json.dumps({"rank": worker.rank}), file=stream, flush=True)
            for line in stream:
                request = json.loads(line)
                answer = getattr(worker, request.pop("do"))(**request)
                print(json.dumps(answer), file=stream, flush=True)
    # The bench ends ranks: an orderly end would wait for those that have gone.
    os._exit(0)


if __name__ == "__main__":
    main()
