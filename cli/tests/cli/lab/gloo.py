"""An all_reduce with Gloo: `gloo.py VALUES HOST...` on every host; processes meet at the first."""

import os
import socket
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

MEETING_PORT = 29500


def is_own(host):
    """True if this machine has the host's address."""
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def main():
    values, hosts = int(sys.argv[1]), sys.argv[2:]
    rank = next(rank for rank, host in enumerate(hosts) if is_own(host))
    # By default, Gloo looks up the machine's name, which all hosts in Mininet share.
    interface = next(name for _, name in socket.if_nameindex() if name != "lo")
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group(
        "gloo", init_method=f"tcp://{hosts[0]}:{MEETING_PORT}", rank=rank, world_size=len(hosts),
        timeout=timedelta(seconds=60))
    ours = torch.arange(values, dtype=torch.float32) + rank
    dist.all_reduce(ours)
    expected = torch.arange(values, dtype=torch.float32) * len(hosts) + sum(range(len(hosts)))
    if not torch.equal(ours, expected):
        sys.exit(f"rank {rank}: the sum is {ours}")
    # The first process serves the meeting point, so it must end last.
    dist.barrier()
    print(f"rank {rank} of {len(hosts)} has the sum")


if __name__ == "__main__":
    main()
