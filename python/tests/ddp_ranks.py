"""What one rank does in the tests of the communication hook."""

# No `from __future__ import annotations`: DDP compares the annotations of hooks with types.

import contextlib
import copy
import datetime
import gc
import hashlib
import json
import os
import pathlib
import pickle
import sys
import threading
import time

import torch
import torch.distributed as dist
import ultima
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_wrapper, fp16_compress_wrapper
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# Where models and gradients are.
DEVICE = os.environ.get("ULTIMA_TEST_DEVICE", "cpu")
torch.set_num_threads(1)
# Small, so that a model has several buckets.
BUCKET_MB = 0.02
dist._DEFAULT_FIRST_BUCKET_BYTES = 8192


class Net(nn.Module):
    """A small CNN for images of 8 by 8 pixels, with a branch that some steps do not use."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.linear = nn.Linear(32 * 16, 32)
        self.branch = nn.Linear(32, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, images, uses_branch=True):
        """Return the scores of ten classes."""
        features = self.linear(self.convolutions(images).flatten(1)).relu()
        if uses_branch:
            features = features + self.branch(features)
        return self.last(features)


def batch(step, dtype=torch.float32):
    """Return images and classes: bars at ten places and angles, with noise. Each rank has its own."""
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    classes = torch.randint(0, 10, (32,), generator=generator)
    images = 0.3 * torch.rand(32, 1, 8, 8, generator=generator)
    for image, digit in zip(images, classes.tolist()):
        if digit < 5:
            image[0, digit + 1, :] += 1
        else:
            image[0, :, digit - 4] += 1
    return images.to(DEVICE, dtype), classes.to(DEVICE)


def model(dtype=torch.float32, group=None, state=None, hook=ultima.allreduce_hook, **options):
    """Return a DDP model with the same weights everywhere, and a hook if there is a state."""
    torch.manual_seed(7)
    ddp = DistributedDataParallel(Net().to(DEVICE, dtype), process_group=group, bucket_cap_mb=BUCKET_MB, **options)
    if state is not None:
        ddp.register_comm_hook(state, hook)
    return ddp


def train(ddp, steps, dtype=torch.float32, forward=lambda ddp, step, images: ddp(images)):
    """Train, and return the gradients of the first steps and the last loss."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    gradients = []
    for step in range(steps):
        images, classes = batch(step, dtype)
        optimizer.zero_grad()
        loss = cross_entropy(forward(ddp, step, images), classes)
        loss.backward()
        if step < 3:
            used = [p for p in ddp.parameters() if p.grad is not None]
            gradients.append(torch.cat([p.grad.flatten() for p in used]).double())
        optimizer.step()
    return gradients, float(loss)


def digest(ddp):
    """Return a hash of all bits of the parameters."""
    sha = hashlib.sha256()
    for parameter in ddp.parameters():
        sha.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    return sha.hexdigest()


def is_equal_everywhere(ddp):
    """Return whether all ranks have the same bits."""
    digests = [None] * RANKS
    dist.all_gather_object(digests, digest(ddp))
    return len(set(digests)) == 1


def difference(ours, theirs):
    """Return the largest relative distance of two lists of gradients."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(ours, theirs))


def accuracy(ddp):
    """Return the share of right answers on images that no rank has seen."""
    images, classes = batch(10_000)
    with torch.no_grad():
        return float((ddp.module(images).argmax(1) == classes).float().mean())


class FirstBucket:
    """What the hook needs of DDP's bucket."""

    def index(self):
        return 0

    def buffer(self):
        return torch.zeros(3)

    def is_last(self):
        return True


def hook():
    """Compare the hook with Gloo in everything that DDP does."""
    dist.init_process_group("gloo")
    report = {}
    state = ultima.State(deadline=60.0, learning=False)
    ours, theirs = model(state=state), model()
    (our_gradients, our_loss), (gradients, loss) = train(ours, 25), train(theirs, 25)
    report["gradients"] = difference(our_gradients, gradients)
    report["loss"] = [our_loss, loss]
    report["accuracy"] = [accuracy(ours), accuracy(theirs)]
    report["equal"] = is_equal_everywhere(ours)
    stats = state.stats()
    report["steps"] = len(stats)
    # The first step has the buckets before DDP rebuilds them.
    report["buckets"] = stats[-1].buckets
    report["ids"] = [s.step for s in stats] == list(range(stats[0].step, stats[0].step + 25))
    report["closed_by"] = sorted({s.closed_by for s in stats})
    report["lost"] = sum(s.lost_share for s in stats)
    report["seconds"] = min(s.seconds for s in stats) > 0

    def accumulate(ddp, step, images):
        """Add the gradient of another batch, which DDP does not average until `backward`."""
        with ddp.no_sync():
            more, classes = batch(500 + step)
            cross_entropy(ddp(more), classes).backward()
        return ddp(images)

    def skip_branch(ddp, step, images):
        return ddp(images, uses_branch=step % 2 == 0)

    recycling = ultima.State(deadline=60.0, learning=False, recycling=True)
    for name, options in {
        "no_sync": {"forward": accumulate},
        "unused": {"forward": skip_branch, "find_unused_parameters": True},
        "view": {"gradient_as_bucket_view": True},
        "fp16": {"hook": fp16_compress_wrapper(ultima.allreduce_hook)},
        "float64": {"dtype": torch.float64},
        "recycling": {"state": recycling},
        "compile": {"compile": True},
    }.items():
        forward = options.pop("forward", lambda ddp, step, images: ddp(images))
        dtype = options.get("dtype", torch.float32)
        ours_options = {"state": state, **options}
        theirs_options = {k: v for k, v in options.items() if k not in ("state", "hook")}
        if options.pop("compile", False):
            # It takes a minute.
            if not os.environ.get("ULTIMA_FULL") or not hasattr(torch, "compile"):
                report[name] = None
                continue
            del ours_options["compile"], theirs_options["compile"]
            ours, theirs = torch.compile(model(**ours_options)), model(**theirs_options)
        else:
            ours, theirs = model(**ours_options), model(**theirs_options)
        gradients = [train(ddp, 3, dtype, forward)[0] for ddp in (ours, theirs)]
        report[name] = [difference(*gradients), is_equal_everywhere(ours)]

    # Two groups at the same time, and a group without this rank.
    pair = dist.new_group([0, 1])
    if RANK < 2:
        in_pair = ultima.State(pair, deadline=60.0, learning=False)
        ours, theirs = model(group=pair, state=in_pair), model(group=pair)
        report["group"] = difference(train(ours, 3)[0], train(theirs, 3)[0])
        assert in_pair.world_size == 2
    elif pair is not None:
        try:
            ultima.State(pair)
        except (ultima.SettingError, RuntimeError, ValueError):
            report["group"] = 0
    # A gradient that is not finite is not finite on any rank.
    ours = model(state=state)
    images, classes = batch(0)
    cross_entropy(ours(images * (float("inf") if RANK == 0 else 1)), classes).backward()
    report["spreads"] = not all(bool(p.grad.isfinite().all()) for p in ours.parameters())
    # Types in which old versions of Gloo broadcast no parameters.
    for name, dtype in {"bfloat16": torch.bfloat16, "float16": torch.float16}.items():
        values = torch.linspace(-1, 1, 3000, dtype=dtype, device=DEVICE) + RANK
        mean = state.reduce(0, values, True).wait()
        assert mean is values and mean.dtype == dtype
        expected = torch.linspace(-1, 1, 3000, dtype=dtype, device=DEVICE).float() + (RANKS - 1) / 2
        report[name] = [float((mean.float() - expected).abs().max()), True]
    # Without a controller there is no group to send to.
    state.set_multicast(False)
    try:
        state.set_multicast(True)
    except ultima.SettingError as error:
        report["multicast"] = str(error)
    try:
        ultima.State(gone_after="60")
    except ultima.SettingError as error:
        report["gone_after"] = str(error)
    report["groups"] = []
    for group in ([0, 1], "gloo", 5):
        try:
            ultima.State(group)
        except ultima.SettingError as error:
            report["groups"].append(str(error))
    # Gradients that cannot be averaged are refused before the network sees them.
    try:
        state.reduce(0, torch.zeros(3, dtype=torch.complex64, device=DEVICE), True)
    except ultima.DtypeError as error:
        report["dtype"] = str(error)
    # A state that nobody has any more ends by itself.
    forgotten = ultima.State()
    forgotten.reduce(0, torch.zeros(10), True).wait()
    threads = threading.active_count()
    del forgotten
    gc.collect()
    for _ in range(100):
        if threading.active_count() < threads:
            break
        time.sleep(0.1)
    report["forgotten"] = threads - threading.active_count()
    # A copy of a model has its state; a file has none.
    assert copy.deepcopy(state) is state
    report["states"] = []
    for other in (None, pickle.loads(pickle.dumps(state))):
        try:
            ultima.allreduce_hook(other, FirstBucket())
        except ultima.SettingError as error:
            report["states"].append(str(error))
    dist.barrier()
    state.close()
    images, classes = batch(0)
    try:
        cross_entropy(ours(images), classes).backward()
    except RuntimeError as error:
        # Old versions of autograd keep the name and the message of an exception, but not its class.
        report["closed"] = "the job was closed" in str(error)
    dist.barrier()
    return report


def backend():
    """Use the collectives of `init_process_group("ultima")`: they are exact."""
    dist.init_process_group("ultima")
    wrong = []

    def check(what, is_right):
        if not is_right:
            wrong.append(what)

    check("name", dist.get_backend() == "ultima")
    mine = torch.arange(5, dtype=torch.float64) + RANK
    total = mine.clone()
    dist.all_reduce(total)
    check("all_reduce", torch.equal(total, sum(torch.arange(5, dtype=torch.float64) + r for r in range(RANKS))))
    largest = torch.tensor([RANK])
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    check("max of integers", largest.item() == RANKS - 1)
    rows = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(rows, mine)
    check("all_gather", all(torch.equal(row, mine - RANK + r) for r, row in enumerate(rows)))
    sent = torch.full((3,), float(RANK))
    dist.broadcast(sent, src=1)
    check("broadcast", torch.equal(sent, torch.ones(3)))
    reduced = torch.ones(2)
    dist.reduce(reduced, dst=0)
    check("reduce", RANK != 0 or reduced[0].item() == RANKS)
    part = torch.empty(2)
    dist.scatter(part, [torch.full((2,), float(r)) for r in range(RANKS)] if RANK == 0 else None, src=0)
    check("scatter", part[0].item() == RANK)
    gathered = [torch.empty(2) for _ in range(RANKS)] if RANK == 0 else None
    dist.gather(part, gathered, dst=0)
    check("gather", RANK != 0 or [g[0].item() for g in gathered] == list(range(RANKS)))
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": RANK})
    check("objects", [o["rank"] for o in objects] == list(range(RANKS)))
    listed = [RANK, "x"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(listed, src=0)
    check("broadcast of objects", listed == [0, "x"])
    if RANK == 0:
        dist.send(torch.tensor([41.0]), dst=1)
    elif RANK == 1:
        received = torch.empty(1)
        dist.recv(received, src=0)
        check("send", received.item() == 41)
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    dist.barrier()
    group = dist.new_group([0, 1])
    if RANK < 2:
        ones = torch.ones(1)
        dist.all_reduce(ones, group=group)
        check("group", ones.item() == 2)
    # DDP without a hook, then with one.
    gradients = [train(model(), 3)[0], train(model(state=ultima.State(deadline=60.0, learning=False)), 3)[0]]
    check("DDP", difference(*gradients) < 1e-4)
    dist.barrier()
    return wrong


def sharded():
    """Train with FSDP2 on the backend, and return the relative distance of its weights from DDP's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("ultima")
    torch.manual_seed(7)
    net = Net().to(DEVICE)
    fully_shard(net, mesh=init_device_mesh(DEVICE, (RANKS,)))
    train(net, 3)
    ddp = model()
    train(ddp, 3)
    ours = torch.cat([p.full_tensor().flatten() for p in net.parameters()]).detach()
    theirs = torch.cat([p.flatten() for p in ddp.parameters()]).detach()
    return float((ours - theirs).norm() / theirs.norm())


def hybrid():
    """Train with HSDP: shards, and replicas that Ultima averages. Return the distance from DDP's weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if DEVICE == "cpu":
        dist.init_process_group("ultima")
        shape = (RANKS // 2, 2)
    else:
        # NCCL takes one GPU for each rank of a group. Here all ranks have one, so each is alone in its shard.
        dist.init_process_group("cpu:gloo,cuda:nccl")
        shape = (RANKS, 1)
    mesh = init_device_mesh(DEVICE, shape, mesh_dim_names=("replicate", "shard"))
    state = ultima.State(mesh.get_group("replicate"), deadline=60.0, learning=False, recycling=True)
    torch.manual_seed(7)
    net = Net().to(DEVICE)
    # The root has no parameters of its own then.
    for part in (net.convolutions, net.linear, net.branch, net.last, net):
        fully_shard(part, mesh=mesh["shard"])
    state.replicate(net)
    train(net, 4)
    ddp = model(group=dist.new_group(backend="gloo"))
    train(ddp, 4)
    ours = torch.cat([p.full_tensor().flatten() for p in net.parameters()]).detach()
    theirs = torch.cat([p.flatten() for p in ddp.parameters()]).detach()
    return {
        "difference": float((ours - theirs).norm() / theirs.norm()),
        "buckets": [step.buckets for step in state.stats()],
    }


def uneven():
    """Train with a batch more on each rank than on the one before, and return the distance from Gloo's weights."""
    dist.init_process_group("gloo")
    ddps = [model(state=ultima.State(deadline=60.0, learning=False)), model()]
    weights = []
    for ddp in ddps:
        with ddp.join():
            train(ddp, 3 + RANK)
        weights.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]))
    return [float((weights[0] - weights[1]).norm() / weights[1].norm()), is_equal_everywhere(ddps[0])]


def scaled():
    """Train with AMP's scaler; in step 2 the gradients of rank 1 are infinite. Return each step's scale, and more."""
    dist.init_process_group("gloo")
    report = {}
    for name, options in {"plain": {}, "recycling": {"recycling": True}, "gloo": None}.items():
        scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0, growth_interval=3)
        settings = {"deadline": 60.0, "learning": False, "scaler": scaler}
        ddp = model(state=None if options is None else ultima.State(**settings, **options))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        scales, skipped = [], []
        for step in range(8):
            images, classes = batch(step)
            before = digest(ddp)
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = cross_entropy(ddp(images), classes)
            factor = float("inf") if step == 2 and RANK == 1 else 1.0
            (scaler.scale(loss) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            if digest(ddp) == before:
                skipped.append(step)
        report[name] = {"scales": scales, "skipped": skipped, "equal": is_equal_everywhere(ddp), "loss": float(loss)}
    return report


def digits():
    """Train a CNN on handwritten digits with the hook and with Gloo. Return both accuracies."""
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))
    import train_ddp

    dist.init_process_group("gloo")
    images, classes = (values.to(DEVICE) for values in train_ddp.load(train_ddp.DIGITS))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    tested, trained = order[:1000], order[1000:]
    accuracies = []
    for state in (ultima.State(deadline=60.0, learning=False), None):
        ddp = model(state=state)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(2)
        for epoch in range(20):
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - epoch / 20)
            mine = trained[torch.randperm(len(trained), generator=generator)][RANK::RANKS]
            for batch in mine[: len(trained) // RANKS].split(32):
                optimizer.zero_grad()
                cross_entropy(ddp(images[batch]), classes[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            accuracies.append(float((ddp.module(images[tested]).argmax(1) == classes[tested]).float().mean()))
        assert is_equal_everywhere(ddp)
    return accuracies


def averaged():
    """Make replicas differ, and then equal again. Return the errors of the mean and of what cannot be averaged."""
    dist.init_process_group("gloo")
    state = ultima.State(deadline=60.0, learning=False)
    ddp = model(state=state)
    train(ddp, 2)
    with torch.no_grad():
        for parameter in ddp.parameters():
            parameter += RANK
    expected = [parameter.detach() - RANK + (RANKS - 1) / 2 for parameter in ddp.parameters()]
    state.average(ddp.parameters())
    error = max(float((p.detach() - e).abs().max()) for p, e in zip(ddp.parameters(), expected))
    is_equal = is_equal_everywhere(ddp)
    train(ddp, 2)
    try:
        state.average([torch.zeros(3, dtype=torch.int64)])
    except ultima.DtypeError as refused:
        return [error, is_equal and is_equal_everywhere(ddp), str(refused)]


def streams():
    """Average on CUDA streams that are busy. Return what went wrong."""
    dist.init_process_group("gloo")
    state = ultima.State(deadline=60.0, learning=False)
    wrong = []
    # A model with several buckets: `backward` returns without waiting for the GPU or for Ultima.
    ddp = model(state=state, hook=bf16_compress_wrapper(ultima.allreduce_hook))
    train(ddp, 3)
    images, classes = batch(3)
    loss = cross_entropy(ddp(images), classes)
    torch.cuda.set_sync_debug_mode("error")
    loss.backward()
    torch.cuda.set_sync_debug_mode("default")
    expected = (RANKS - 1) / 2
    side = torch.cuda.Stream()
    for step in range(20):
        with torch.cuda.stream(side) if step % 2 else contextlib.nullcontext():
            # The values are there long after the call.
            torch.cuda._sleep(20_000_000)
            buckets = [torch.full((n, 3), float(RANK), device=DEVICE).t() for n in (50_000, 50_000, 7)]
            # Two at once with the same number of values: each has its own memory.
            futures = [state.reduce(i, bucket, i == 2) for i, bucket in enumerate(buckets)]
            means = [future.wait() for future in futures]
            late = [torch.zeros_like(mean) + mean for mean in means]
            # The next allocations take this memory while copies may be on their way.
            del buckets, futures, means
            torch.full((150_000,), -1.0, device=DEVICE)
            if any(bool((mean - expected).abs().max() > 1e-5) for mean in late):
                wrong.append(step)
    dist.barrier()
    return wrong


def slow():
    """Train with a last rank that is slow in every step."""
    dist.init_process_group("gloo")
    state = ultima.State(deadline=60.0, learning=False)
    ddp = model(state=state)
    for step in range(40):
        images, classes = batch(step)
        loss = cross_entropy(ddp(images), classes)
        if RANK == RANKS - 1:
            time.sleep(0.1)
        loss.backward()
    dist.barrier()
    return [sum(step.waited.get(RANKS - 1, 0.0) for step in state.stats()), state.stats()[-1].closed_by]


def reconfigured():
    """Lose the last rank, and continue as a smaller group: a new epoch."""
    dist.init_process_group("ultima", enable_reconfigure=True)
    store = dist.distributed_c10d._get_default_store()
    limit = datetime.timedelta(seconds=60)

    def regroup(epoch, ranks):
        """Give the process group these ranks."""
        store.set(f"{epoch}/{RANK}", dist.distributed_c10d._get_reconfigure_handle())
        handles = [store.get(f"{epoch}/{rank}").decode() for rank in range(ranks)]
        dist.distributed_c10d._reconfigure(uuid=epoch, handles=handles, timeout=limit).wait()

    report = []
    for epoch, ranks in enumerate((RANKS, RANKS - 1), 1):
        if RANK >= ranks:
            break
        regroup(epoch, ranks)
        state = ultima.State(deadline=60.0, learning=False)
        mean = state.reduce(0, torch.full((5000,), float(RANK)), True).wait()
        total = torch.ones(1)
        dist.all_reduce(total)
        report.append([state.world_size, float(mean[0]), float(total)])
        state.close()
    return report


def killed():
    """Lose the last rank in the middle of training."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    # With others left, a busy machine may silence them, too, for a while.
    state = ultima.State(deadline=0.3, learning=False, gone_after=2.0 if RANKS == 2 else 100.0)
    ddp = model(state=state)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    store = dist.distributed_c10d._get_default_store()
    steps = 0
    try:
        for step in range(200):
            if step == 3:
                # DDP has rebuilt its buckets, which needs all ranks of Gloo's group.
                store.add("rebuilt", 1)
            if RANK == RANKS - 1 and step == 5:
                while store.add("rebuilt", 0) < RANKS:
                    time.sleep(0.01)
                os._exit(0)
            images, classes = batch(step)
            optimizer.zero_grad()
            cross_entropy(ddp(images), classes).backward()
            optimizer.step()
            steps += 1
            if RANKS > 2 and step == 30:
                break
    except RuntimeError as error:
        ended = str(error)
        try:
            state.reduce(0, torch.zeros(3), True)
        except ultima.Error as first:
            kind = type(first).__name__
    else:
        ended, kind = "", ""
    # Without the barriers of a tidy end: a rank is missing.
    return {
        "steps": steps,
        "ended": ended,
        "kind": kind,
        "silent": [step.silent for step in state.stats()],
    }


def gone():
    """Lose the last rank for good. Return the errors that end the training of the others."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    # A busy machine may silence the other rank, too, for a while.
    state = ultima.State(deadline=0.6, learning=False, gone_after=0.5)
    report = {}
    # Without DDP, whose rebuilding of buckets needs all ranks.
    for step in range(500):
        if RANK == RANKS - 1 and step == 3:
            os._exit(0)
        try:
            state.reduce(0, torch.ones(5000), True).wait()
            # The step's other work.
            time.sleep(0.01)
        except (ultima.Error, RuntimeError) as error:
            report["ended"] = str(error)
            break
    try:
        state.reduce(0, torch.zeros(3), True)
    except ultima.Error as error:
        report["kind"], report["again"] = type(error).__name__, str(error)
    report["silent"] = [step.silent for step in state.stats()]
    return report


def stopped():
    """Stop the last rank until the others have done some steps without it, and let it continue."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    state = ultima.State(deadline=0.3, learning=False)
    store = dist.distributed_c10d._get_default_store()
    for step in range(15):
        if RANK == RANKS - 1 and step == 3:
            while store.add("done", 0) < RANKS - 1:
                time.sleep(0.05)
        if step == 12:
            store.add("done", 1)
            dist.barrier()
        state.reduce(0, torch.ones(5000), True).wait()
    dist.barrier()
    return {"silent": [step.silent for step in state.stats()]}


def gpt():
    """Train the GPT of the examples with the hook and with Gloo. Return the first loss, and both last ones."""
    sys.path.append(str(pathlib.Path(__file__).parents[2] / "examples"))
    import train_gpt

    dist.init_process_group("gloo")
    text = (train_gpt.DOCS / "pytorch.md").read_text()
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    text = torch.tensor([alphabet[character] for character in text])
    losses = []
    for state in (ultima.State(deadline=60.0, learning=False), None):
        torch.manual_seed(1)
        ddp = DistributedDataParallel(train_gpt.GPT(len(alphabet), 32, 32, 1).to(DEVICE), bucket_cap_mb=BUCKET_MB)
        if state is not None:
            ddp.register_comm_hook(state, ultima.allreduce_hook)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
        generator = torch.Generator().manual_seed(RANK)
        losses.append([])
        for _ in range(50):
            tokens, following = (t.to(DEVICE) for t in train_gpt.batch(text, 16, 32, generator))
            optimizer.zero_grad()
            loss = cross_entropy(ddp(tokens).flatten(0, 1), following.flatten())
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    return [losses[0][0], losses[0][-1], losses[1][-1]]


def orphaned():
    """Create a state at a store that ends."""
    dist.init_process_group("gloo")
    if RANK == 0:
        time.sleep(1)
        os._exit(0)
    try:
        ultima.State(timeout=20.0)
    except ultima.Error as error:
        # The store cannot take part in the end.
        print(json.dumps([type(error).__name__, str(error)]), flush=True)
        os._exit(0)
    return None


def rendezvous():
    """Create a state with an invalid variable. Return the error, and how many ranks have used the store."""
    dist.init_process_group("gloo")
    try:
        ultima.State()
    except ultima.Error as error:
        dist.barrier()
        store = dist.distributed_c10d._get_default_store()
        keys = sum(store.add(f"ultima/0-1/addresses/{rank}", 0) for rank in range(RANKS))
        dist.barrier()
        return [type(error).__name__, str(error), keys]
    return None


def mismatch():
    """Create a state with another seed than rank 0's."""
    dist.init_process_group("gloo")
    try:
        ultima.State(seed=42 if RANK < RANKS - 1 else 7)
    except ultima.MismatchError as error:
        return str(error)
    return ""


def early():
    """Create a state before the process group."""
    try:
        ultima.State()
    except ultima.RendezvousError as error:
        return str(error)
    return ""
