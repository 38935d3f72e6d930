"""Trains a small CNN on handwritten digits, data-parallel, with Ultima's communication hook.

    torchrun --nproc-per-node 2 examples/train_ddp.py
    torchrun --nproc-per-node 2 examples/train_ddp.py --gloo     # the same without Ultima

The digits are UCI's, CC BY 4.0 (digits/data/README.md).
"""

import argparse
import gzip
import os
from pathlib import Path

import torch
import torch.distributed as dist
import ultima
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

DIGITS = Path(__file__).parent.parent / "digits/data/digits.csv.gz"
TESTED = 360


def load(path):
    """Return images of 8 by 8 pixels, 0 to 1, and the digits that they show."""
    with gzip.open(path, "rt") as lines:
        rows = torch.tensor([[float(pixel) for pixel in line.split(",")] for line in lines])
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()


def local_device():
    """Return this process's GPU, or the CPU if the machine has none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def main():
    """Train, and print loss and accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gloo", action="store_true", help="average gradients with Gloo instead of Ultima")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--digits", type=Path, default=DIGITS)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = local_device()
    torch.manual_seed(1)
    images, digits = (values.to(device) for values in load(options.digits))
    order = torch.randperm(len(images))
    tested, trained = order[:TESTED], order[TESTED:]
    trained = trained[: len(trained) // ranks * ranks]

    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    model = DistributedDataParallel(net)
    state = None
    if not options.gloo:
        state = ultima.State()
        model.register_comm_hook(state, ultima.allreduce_hook)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(options.epochs):
        # The same permutation on all ranks, of which each takes its part.
        mine = trained[torch.randperm(len(trained))][rank::ranks]
        for batch in mine.split(32):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), digits[batch])
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (net(images[tested]).argmax(1) == digits[tested]).float().mean()
        if rank == 0:
            line = f"epoch {epoch}: loss {loss:.4f}, accuracy {right:.1%}"
            if state is not None:
                steps = state.stats()
                seconds = sum(step.seconds for step in steps) / len(steps)
                lost = sum(step.lost_share for step in steps) / len(steps)
                line += f", AllReduce {1e3 * seconds:.2f} ms, {lost:.2%} lost"
            print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
