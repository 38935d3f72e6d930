"""Starts the ranks of a test as processes, with the environment that torchrun sets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# For a whole test on a busy machine: a hang, not a slow run, exceeds it.
LIMIT = 600.0


@dataclass
class Ended:
    """A rank's process after its end."""

    code: int
    output: str
    errors: str

    def result(self) -> Any:
        """Return what the rank reported."""
        assert self.code == 0, f"exit code {self.code}\n{self.output}\n{self.errors}"
        return json.loads(self.output.splitlines()[-1])


def free_port() -> int:
    """Return a TCP port that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(scenario: str, rank: int, ranks: int, port: int, **env: str) -> subprocess.Popen[str]:
    """Start one rank of `scenario`, as "file.function"."""
    variables = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        **env,
    }
    command = [sys.executable, str(HERE / "launch.py"), scenario]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True)


def ends(processes: list[subprocess.Popen[str]], limit: float = LIMIT) -> list[Ended]:
    """Wait for processes. After `limit` seconds, end them all and raise an error with their output and their stacks."""
    until = time.monotonic() + limit
    ended = []
    hung = []
    try:
        for rank, process in enumerate(processes):
            try:
                output, errors = process.communicate(timeout=max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                # Python then prints the stacks of all threads.
                process.send_signal(signal.SIGABRT)
                output, errors = process.communicate(timeout=30)
                hung.append(rank)
            ended.append(Ended(process.returncode, output, errors))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    if hung:
        report = "\n".join(f"rank {r} (code {e.code}):\n{e.output}\n{e.errors}" for r, e in enumerate(ended))
        raise TimeoutError(f"ranks {hung} had not ended after {limit:g} s\n{report}")
    return ended


def run(scenario: str, ranks: int, **env: str) -> list[Ended]:
    """Run all ranks of `scenario`."""
    port = free_port()
    return ends([start(scenario, rank, ranks, port, **env) for rank in range(ranks)])


if __name__ == "__main__":
    module, function = sys.argv[1].split(".")
    report = getattr(__import__(module), function)()
    print(json.dumps(report), flush=True)
    # As in users' scripts: torch 1.13 may abort at the end of a process with an open group.
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
