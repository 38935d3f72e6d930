"""Trains the small GPT of examples/train_gpt.py on a network that loses packets, and without losses, and compares.

    cargo build && sudo python/tests/under_loss.py          # needs iproute2, ethtool; about half an hour

Every rank has a network namespace of its own. `ultima wire` joins it to a bridge, and drops a share of the frames that
the rank sends: those of TCP too. The exact runs average with Gloo, without losses. Prints a table of perplexities, and
fails if training with Hadamard and recycling misses the exact runs' mean by more than 0.8 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import launch

ROOT = launch.HERE.parent.parent
# The most by which the perplexity under loss may differ from the exact run's: the published bar for 10 % of loss.
MOST = 0.008
NETWORK = f"ultima-loss-{os.getpid()}"
EXACT, ROBUST, PLAIN = "exact (Gloo, no loss)", "Hadamard, recycling", "neither"
OPTIONS = {EXACT: ["--gloo"], ROBUST: ["--recycling"], PLAIN: ["--no-hadamard"]}
# A model and batches that two cores train in minutes.
SMALL = ["--width", "32", "--layers", "1", "--context", "32", "--batch", "16"]
# Seconds for a run: a hang exceeds it.
LIMIT = 1800.0


def run(*command: str) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def namespace(rank: int) -> str:
    """Return the name of a rank's namespace."""
    return f"{NETWORK}-{rank}"


@contextlib.contextmanager
def network(ultima: Path, ranks: int, loss: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Create the namespaces, a bridge in one of its own, and the wires between them."""
    inside = ["ip", "netns", "exec", NETWORK]
    wires: list[subprocess.Popen[str]] = []
    names = [NETWORK, *map(namespace, range(ranks))]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run(*inside, "ip", "link", "add", "bridge", "up", "type", "bridge")
        for rank, name in enumerate(names[1:]):
            own = ["ip", "netns", "exec", name]
            run(*inside, "ip", "link", "add", f"rank{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run(*inside, "ip", "link", "add", f"far{rank}", "type", "veth", "peer", "name", f"port{rank}")
            # One frame is one packet, so that packets are lost one by one.
            for where, interface in ((own, "eth0"), (inside, f"port{rank}")):
                offloads = [word for what in ("tx", "sg", "tso", "gso", "gro") for word in (what, "off")]
                run(*where, "ethtool", "-K", interface, *offloads)
            run(*inside, "ip", "link", "set", f"port{rank}", "master", "bridge", "up")
            for interface in (f"rank{rank}", f"far{rank}"):
                run(*inside, "ip", "link", "set", interface, "up")
            run(*own, "ip", "link", "set", "lo", "up")
            run(*own, "ip", "address", "add", f"10.0.0.{rank + 1}/24", "dev", "eth0")
            run(*own, "ip", "link", "set", "eth0", "up")
            wire = [*inside, ultima, "wire", "-i", f"rank{rank}", "-i", f"far{rank}"]
            wire += ["--a-to-b", f"loss={loss}", "--seed", str(rank + 1), "-o", "json"]
            wires.append(subprocess.Popen(list(map(str, wire)), stdout=subprocess.PIPE, text=True))
            assert "joined" in wires[-1].stdout.readline()
        yield wires
    finally:
        for wire in wires:
            wire.kill()
            wire.wait()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def lost_share(wires: list[subprocess.Popen[str]]) -> float:
    """End the wires, and return the share of the ranks' frames that they dropped."""
    entered = lost = 0
    for wire in wires:
        wire.send_signal(signal.SIGINT)
        counts = json.loads(wire.communicate(timeout=60)[0])["a_to_b"]
        entered += counts["entered"]
        lost += counts["entered"] - counts["left"]
    return lost / entered


def train(ranks: int, options: list[str], is_apart: bool) -> tuple[float, str]:
    """Train with all ranks, each in its namespace if they are apart. Return the perplexity, and rank 0's last lines."""
    script = [sys.executable, str(ROOT / "examples/train_gpt.py"), *options]
    env = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "10.0.0.1" if is_apart else "127.0.0.1",
        "MASTER_PORT": "29500" if is_apart else str(launch.free_port()),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "GLOO_SOCKET_IFNAME": "eth0" if is_apart else "lo",
    }
    processes = [
        subprocess.Popen(
            [*(["ip", "netns", "exec", namespace(rank)] if is_apart else []), *script],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ended = launch.ends(processes, LIMIT)
    for rank, process in enumerate(ended):
        if process.code:
            print(f"rank {rank} ended with code {process.code}\n{process.output}\n{process.errors}", file=sys.stderr)
    # torch 2.15 has aborted at the end of ranks that used Gloo only, after rank 0 had the result of all.
    if ended[0].code or (is_apart and any(process.code for process in ended)):
        sys.exit("error: a rank failed")
    lines = ended[0].output.splitlines()[-2:]
    return float(lines[1].split()[1]), ", ".join(lines)


def main() -> None:
    """Train every seed in all ways, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ultima", type=Path, default=ROOT / "target/debug/ultima", help="the program, for its wires")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--loss", type=float, default=0.1, help="share of a rank's frames (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--adamw", action="store_true", help="instead of SGD with momentum")
    options = parser.parse_args()
    perplexities: dict[str, list[float]] = {way: [] for way in OPTIONS}
    for seed in range(1, options.seeds + 1):
        for way, own in OPTIONS.items():
            common = ["--seed", str(seed), "--steps", str(options.steps), *SMALL]
            common += [] if options.adamw else ["--sgd"]
            if way == EXACT:
                perplexity, line = train(options.ranks, [*own, *common], is_apart=False)
            else:
                with network(options.ultima, options.ranks, options.loss) as wires:
                    own = [*own, "--deadline", str(options.deadline)]
                    perplexity, line = train(options.ranks, [*own, *common], is_apart=True)
                    line += f"; the wires dropped {lost_share(wires):.2%} of the frames"
            perplexities[way].append(perplexity)
            print(f"seed {seed}, {way}: {line}", flush=True)
    print("| seed |", " | ".join(OPTIONS), "|")
    for seed, row in enumerate(zip(*perplexities.values()), 1):
        print(f"| {seed} |", " | ".join(f"{p:.3f} ({p / row[0] - 1:+.2%})" for p in row), "|")
    means = {way: statistics.mean(all_seeds) for way, all_seeds in perplexities.items()}
    print("| mean |", " | ".join(f"{mean:.3f} ({mean / means[EXACT] - 1:+.2%})" for mean in means.values()), "|")
    if means[ROBUST] / means[EXACT] - 1 > MOST:
        sys.exit(f"error: with {ROBUST.lower()} the perplexity is more than {MOST:.1%} above the exact run's")


if __name__ == "__main__":
    main()
