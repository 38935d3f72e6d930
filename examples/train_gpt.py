"""Trains a small GPT on this project's documentation, data-parallel, with Ultima's communication hook.

    torchrun --nproc-per-node 2 examples/train_gpt.py
    torchrun --nproc-per-node 2 examples/train_gpt.py --gloo --seed 2      # the same without Ultima

It prints the perplexity, by character, on a tenth of the text that it does not train on. The text is docs/*.md of this
repository, under its licence (Apache-2.0); --text trains on another file.
"""

import argparse
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
import ultima
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

DOCS = Path(__file__).parent.parent / "docs"


class Block(nn.Module):
    """Attention and a perceptron, each added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, mask):
        """Return the block's output."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self, characters, context, width, layers, heads=4):
        super().__init__()
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        # No buffer: DDP would wait in every step until Gloo has broadcast it.
        self.mask = torch.full((context, context), -math.inf).triu(1)

    def forward(self, tokens):
        """Return a score of every character, after every character of `tokens`."""
        n = tokens.shape[1]
        x = self.token(tokens) + self.place.weight[:n]
        mask = self.mask[:n, :n].to(x.device)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def batch(text, size, context, generator):
    """Return random pieces of the text, and the same one character later."""
    starts = torch.randint(0, len(text) - context - 1, (size,), generator=generator)
    pieces = torch.stack([text[s : s + context + 1] for s in starts.tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def perplexity(net, text, context):
    """Return e to the mean loss on the first 100 pieces of the text."""
    pieces = text[: len(text) // context * context].view(-1, context)[:100]
    with torch.no_grad():
        scores = net(pieces[:, :-1])
        return math.exp(cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten()))


def local_device():
    """Return this process's GPU, or the CPU if the machine has none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def main():
    """Train, and print the perplexity."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gloo", action="store_true", help="average gradients with Gloo instead of Ultima")
    parser.add_argument("--recycling", action="store_true", help="deliver losses in later steps")
    parser.add_argument("--no-hadamard", action="store_true", help="do not spread losses over many values")
    parser.add_argument("--sgd", action="store_true", help="SGD with momentum instead of AdamW")
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds for an AllReduce")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in a rank's batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--text", type=Path, help="default: docs/*.md")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = local_device()
    files = [options.text] if options.text else sorted(DOCS.glob("*.md"))
    characters = "".join(file.read_text() for file in files)
    alphabet = {character: number for number, character in enumerate(sorted(set(characters)))}
    text = torch.tensor([alphabet[character] for character in characters])
    split = len(text) * 9 // 10
    trained, tested = text[:split], text[split:].to(device)

    torch.manual_seed(options.seed)
    net = GPT(len(alphabet), options.context, options.width, options.layers).to(device)
    model = DistributedDataParallel(net)
    state = None
    if not options.gloo:
        state = ultima.State(
            deadline=options.deadline, recycling=options.recycling, hadamard=not options.no_hadamard
        )
        model.register_comm_hook(state, ultima.allreduce_hook)

    if options.sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1) * (1 - step / options.steps)
    )
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)
    for step in range(1, options.steps + 1):
        pieces = batch(trained, options.batch, options.context, generator)
        tokens, following = (tensor.to(device) for tensor in pieces)
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        if rank == 0 and (step % 100 == 0 or step == options.steps):
            line = f"step {step}: loss {loss:.4f}"
            if state is not None:
                steps = state.stats()
                seconds = sum(step.seconds for step in steps) / len(steps)
                lost = sum(step.lost_share for step in steps) / len(steps)
                line += f", AllReduce {1e3 * seconds:.1f} ms, {lost:.2%} lost"
            print(line, flush=True)
    # At the end only: the others would wait for a rank that evaluates, or go on without its gradients.
    if rank == 0:
        print(f"perplexity {perplexity(net, tested, options.context):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
