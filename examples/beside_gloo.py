#!/usr/bin/python3
"""Times Ultima's AllReduce and Gloo's in turns, in one lab of four hosts whose links have long-tailed delays.

    cargo build --release
    sudo examples/beside_gloo.py                      # needs Debian's python3-torch and iproute2
    sudo examples/beside_gloo.py --delay lognormal:4ms:0.47 --bytes 4000000 --rounds 5

Prints, for each round and over all, the time of an operation at p50 and p99, and Gloo's time divided by Ultima's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOSTS = ["h1", "h2", "h3", "h4"]
LAB = "beside-gloo"
ULTIMA = Path(__file__).resolve().parents[1] / "target/release/ultima"


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="100M", help="rate of each link, in bits per second (default: %(default)s)")
    parser.add_argument(
        "--delay", default="lognormal:2ms:0.472",
        help="jitter of each link as in a fabric file; log-normal with sigma 0.472 has p99 = 3 x p50 (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=400_000, help="size of the gradient (default: %(default)s)")
    parser.add_argument("--operations", type=int, default=100, help="operations per round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both (default: %(default)s)")
    parser.add_argument("--gloo-rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def gloo_rank(rank, length, operations):
    """Runs a rank of Gloo in a host's namespace; prints the times of its operations in ms."""
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29500", rank=rank, world_size=len(HOSTS))
    values = torch.ones(length // 4)
    times = []
    for _ in range(operations):
        start = time.perf_counter()
        dist.all_reduce(values)
        times.append(1e3 * (time.perf_counter() - start))
        values /= len(HOSTS)
    print(json.dumps(times))


def on_hosts(command):
    """Runs a command on every host at once; returns what the first prints."""
    prefix = [ULTIMA, "lab", "exec", "--name", LAB]
    processes = [subprocess.Popen([*prefix, host, "--", *command(rank, host)], stdout=subprocess.PIPE, text=True)
                 for rank, host in enumerate(HOSTS)]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("error: a rank failed")
    return outputs[0]


def gloo(args):
    options = ["--bytes", str(args.bytes), "--operations", str(args.operations)]
    return json.loads(on_hosts(lambda rank, _: [sys.executable, __file__, *options, "--gloo-rank", str(rank)]))


def ultima(args, folder):
    job = folder / "job.yaml"
    job.write_text(f"name: train\nmembers: [{', '.join(HOSTS)}]\n")
    controller = ["--controller", f"unix:/run/ultima/labs/{LAB}/controller.sock"]
    subprocess.run([ULTIMA, "job", "create", "-f", job, *controller], check=True, stdout=subprocess.DEVNULL)
    work = ["--allreduce", str(args.bytes // 4), "--repeat", str(args.operations), "--output", "json"]
    report = on_hosts(lambda _, host: [ULTIMA, "agent", "--job", "train", "--host", host, *controller, *work])
    subprocess.run([ULTIMA, "job", "delete", "train", *controller], check=True, stdout=subprocess.DEVNULL)
    rank = json.loads(report)["ranks"][0]
    lost = [sum(operation["lost_contributions"].values()) for operation in rank["operations"]]
    print(f"         contributions lost: {sum(lost)} in {sum(map(bool, lost))} of {len(lost)} operations")
    return [operation["ms"] for operation in rank["operations"]]


def percentiles(times):
    """p50 and p99 without the first fifth, in which both learn."""
    times = sorted(times[len(times) // 5:])
    return times[len(times) // 2], times[len(times) * 99 // 100]


def main():
    args = options()
    if args.gloo_rank is not None:
        return gloo_rank(args.gloo_rank, args.bytes, args.operations)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fabric = {
            "switches": [{"name": "s1"}],
            "hosts": [{"name": host, "mac": f"02:00:00:00:00:0{rank + 1}", "ip": f"10.0.0.{rank + 1}"}
                      for rank, host in enumerate(HOSTS)],
            "links": [{"ends": [host, f"s1/{rank + 1}"], "rate": args.rate, "jitter": args.delay}
                      for rank, host in enumerate(HOSTS)]}
        (folder / "fabric.yaml").write_text(json.dumps(fabric))
        subprocess.run([ULTIMA, "lab", "up", folder / "fabric.yaml", "--name", LAB], check=True, stdout=subprocess.DEVNULL)
        try:
            ratios = []
            for number in range(args.rounds):
                runs = [("gloo", lambda: gloo(args)), ("ultima", lambda: ultima(args, folder))]
                measured = {name: percentiles(run()) for name, run in (runs if number % 2 else runs[::-1])}
                ratios.append([of_gloo / own for of_gloo, own in zip(measured["gloo"], measured["ultima"])])
                for name, (p50, p99) in measured.items():
                    print(f"round {number + 1}: {name:6}  p50 {p50:8.2f} ms  p99 {p99:8.2f} ms", flush=True)
            for name, values in zip(["p50", "p99"], zip(*ratios)):
                print(f"Gloo's {name} ÷ Ultima's: {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        finally:
            subprocess.run([ULTIMA, "lab", "down", LAB], check=True, stdout=subprocess.DEVNULL)
    return None


if __name__ == "__main__":
    main()
