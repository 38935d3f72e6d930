#!/usr/bin/env bash
# A job from its files to its end, in a lab on this machine. Needs root, and `ultima` on the PATH.
set -euo pipefail
cd "$(dirname "$0")"

# Hosts become network namespaces, the switch and the controller become processes.
ultima lab up fabric.yaml --name walkthrough
trap 'ultima lab down walkthrough' EXIT
export ULTIMA_CONTROLLER=unix:/run/ultima/labs/walkthrough/controller.sock

# The controller installs the job's group and its admission rules on the switch.
ultima job create -f job.yaml
ultima fabric show

# One agent on each host. Each averages 100,000 values five times and compares the result with the exact mean.
agents=()
for host in h1 h2 h3 h4; do
  ultima lab exec --name walkthrough "$host" -- \
    ultima agent --job train --allreduce 100000 --repeat 5 --verify --deadline 5s &
  agents+=($!)
done
for agent in "${agents[@]}"; do wait "$agent"; done

# Every packet by its fate, as the switch counted it.
ultima telemetry train
ultima job delete train
