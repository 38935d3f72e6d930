#!/usr/bin/python3
"""Runs a fabric of topologies/ in Mininet: hosts, switches, impaired links and the controller.

    sudo topologies/mininet/launch.py topologies/star4.yaml
    sudo topologies/mininet/launch.py topologies/star4.yaml -c job
    sudo topologies/mininet/launch.py topologies/dumbbell.yaml --switch bmv2 -c pingall -c 'h1 ping -c 3 h2'

Commands, with -c or at Mininet's prompt:

    job [OPTION]...     creates a job with the maximum number of ranks on all hosts, runs `ultima agent --verify` on
                        every host, and deletes the job; OPTIONs are the agent's
    hosts COMMAND       runs a command on all hosts at once

Everything runs in its own network namespace. There the addresses of the fabric's file do not conflict with the
machine's, and BMv2's Thrift server, which listens on all addresses, is not reachable from outside. The controller
listens on a Unix socket, which the hosts and the machine can reach. ULTIMA_CONTROLLER is its address.

Needs Debian's `mininet` and `iproute2`. `ultima lab plan` reads the file, and `ultima wire` impairs links.
"""

import argparse
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Variable with the process id and the outer namespace of this program, which executes itself again in a new one.
INSIDE = "ULTIMA_MININET_NAMESPACE"
# Seconds to wait until a process is ready, or an interface up.
TIMEOUT = 60.0
PR_SET_PDEATHSIG = 1
# The longest name of an interface (IFNAMSIZ less the final zero).
MAX_INTERFACE = 15
# The name of the job that `job` creates.
JOB = "mininet"
# The default options of agents that `job` starts.
AGENT_DEFAULTS = {
    "embedded": {"--allreduce": "100000"},
    # BMv2 forwards some thousand packets per second, and loses bursts.
    "bmv2": {"--allreduce": "10000", "--rate": "2M"}}
REPOSITORY = Path(__file__).resolve().parents[2]


class LaunchError(Exception):
    """An error of one line."""


def arguments():
    parser = argparse.ArgumentParser(description="Runs a fabric in Mininet.")
    parser.add_argument("file", help="the fabric, as YAML")
    parser.add_argument("--switch", choices=["embedded", "bmv2"], default="embedded")
    parser.add_argument("--ultima", help="the binary; by default that on the PATH or in target/")
    parser.add_argument(
        "-c", dest="commands", action="append", default=[], metavar="COMMAND",
        help="run this command instead of Mininet's prompt: `job [OPTION]...` for an AllReduce over all hosts, "
             "`pingall`, `HOST COMMAND`, `hosts COMMAND` on all hosts at once, or `sh COMMAND` in the namespace of the "
             "switches; may be repeated; the first failure ends the program")
    return parser.parse_args()


def find_ultima(given):
    places = [given] if given else [
        shutil.which("ultima"), REPOSITORY / "target/release/ultima", REPOSITORY / "target/debug/ultima"]
    for place in places:
        if place and os.access(place, os.X_OK):
            return str(Path(place).resolve())
    raise LaunchError("there is no binary `ultima`; build it with `cargo build --release`, or say where with --ultima")


def plan_of(ultima, file):
    """The fabric's elements, with the defaults of its file filled in."""
    command = [ultima, "lab", "plan", file, "--name", "mininet", "-o", "json"]
    plan = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if plan.returncode != 0:
        sys.exit(plan.returncode)
    return json.loads(plan.stdout)


def network_of(process):
    """The identity of a process's network namespace; None if the process has ended."""
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:
        return None


def split(command):
    """A command's words."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise LaunchError(f"{command}: {error}") from error


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Processes:
    """The processes that this program starts outside Mininet's shells. They end with it."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, name, command, node=None):
        log = self.folder / f"{name}.log"
        with open(log, "wb") as out:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            if node is None:
                process = subprocess.Popen(command, preexec_fn=die_with_parent, **options)
            else:
                process = node.popen(command, preexec_fn=die_with_parent, **options)
        self.running.append(process)
        return name, process, log

    @staticmethod
    def wait(started, ready):
        """Waits until `ready(the log's text)`. Raises an error with the log's last line if the process ends."""
        name, process, log = started
        deadline = time.monotonic() + TIMEOUT
        while True:
            text = log.read_text(errors="replace")
            if process.poll() is not None:
                raise LaunchError(f"{name}: {(text.splitlines() or ['it ended without output'])[-1]}")
            if ready(text):
                return
            if time.monotonic() > deadline:
                raise LaunchError(f"{name}: it was not ready after {TIMEOUT:.0f} s")
            time.sleep(0.01)

    def stop(self):
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def says(beginning):
    return lambda text: any(line.startswith(beginning) for line in text.splitlines())


def listens(address):
    host, port = address.rsplit(":", 1)

    def ready(_):
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0
    return ready


class Lab:
    def __init__(self, plan, switch, ultima, folder):
        # Import Mininet only here, so that errors of the command line come first.
        from mininet.net import Mininet
        from mininet.node import Switch

        class Box(Switch):
            """A switch or a wire. `Lab.start` starts its process when it has its interfaces."""

            def start(self, controllers):
                pass

        # Otherwise Mininet would raise limits of the whole machine, which fabrics of this size do not need.
        Mininet.inited = True
        self.plan, self.switch, self.ultima = plan, switch, ultima
        self.processes = Processes(folder)
        self.net = Mininet(switch=Box, controller=None, autoSetMacs=False, waitConnected=False)
        self.boxes = {}
        # Short names of nodes, for interfaces whose names would be too long.
        self.short = {}

    def build(self):
        net, plan = self.net, self.plan
        for index, host in enumerate(plan["hosts"]):
            self.short[host["name"]] = f"host+{index}"
            net.addHost(host["name"], mac=host["mac"], ip=f"{host['ip']}/32")
        for switch in plan["switches"]:
            self.add_box(switch["name"])
        for index, link in enumerate(plan["links"]):
            a, b = link["ends"]
            if link["wire"] is None:
                self.link(a, b, link["mtu"])
            else:
                wire = self.wire(index)
                self.add_box(wire)
                self.link(a, f"{wire}/1", link["mtu"])
                self.link(f"{wire}/2", b, link["mtu"])
        net.build()
        net.start()
        for host in plan["hosts"]:
            self.address(host)

    def add_box(self, name):
        self.short[name] = f"box+{len(self.boxes)}"
        # Without `dpid`, Mininet derives it from digits in the name.
        self.boxes[name] = self.net.addSwitch(name, dpid=f"{len(self.boxes) + 1:x}")

    def link(self, a, b, mtu):
        def end(text):
            name, _, port = text.partition("/")
            return self.net.get(name), int(port) if port else None
        def interface(node, port):
            """Mininet's name of the interface, or a short one if the kernel's limit requires it."""
            name = f"{node.name}-eth{port or 0}"
            return name if len(name) <= MAX_INTERFACE else f"{self.short[node.name]}-eth{port or 0}"
        (node1, port1), (node2, port2) = end(a), end(b)
        link = self.net.addLink(
            node1, node2, port1=port1, port2=port2,
            intfName1=interface(node1, port1), intfName2=interface(node2, port2))
        for interface in (link.intf1, link.intf2):
            interface.node.cmd(f"echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
            done = interface.node.cmd("ip link set dev", interface, "mtu", mtu)
            done += interface.node.cmd(self.ultima, "lab-traffic offloads", interface)
            if done.strip():
                raise LaunchError(f"{interface}: {done.strip()}")

    def address(self, host):
        """Sets a host's address, and routes to the other hosts. Switches answer ARP for hosts of all networks."""
        node = self.net.get(host["name"])
        interface = node.defaultIntf()
        commands = [f"address flush dev {interface}", f"address add {host['ip']}/32 dev {interface}"]
        for network in (host["network"], "224.0.0.0/4"):
            commands.append(f"route add {network} dev {interface} src {host['ip']}")
        for command in commands:
            done = node.cmd("ip", command)
            if done.strip():
                raise LaunchError(f"{host['name']}: ip {command}: {done.strip()}")
        done = node.cmd(self.ultima, "lab-traffic accept-local", interface)
        if done.strip():
            raise LaunchError(f"{host['name']}: {done.strip()}")

    def wire(self, index):
        """The name of the wire on a link. Names of switches and hosts have no plus, so it is unique."""
        return f"wire+{index}"

    def wait_for_links(self):
        """Waits until all interfaces are up. The kernel drops frames until it has detected that an interface is up."""
        deadline = time.monotonic() + TIMEOUT
        for node in [*self.boxes.values(), *self.net.hosts]:
            for interface in node.intfList():
                while str(interface) != "lo" and " state UP " not in node.cmd("ip -o link show dev", interface):
                    if time.monotonic() > deadline:
                        raise LaunchError(f"{interface}: it was not up after {TIMEOUT:.0f} s")
                    time.sleep(0.01)

    def interfaces(self, name):
        box = self.boxes[name]
        return {port: str(interface) for port, interface in box.intfs.items() if str(interface) != "lo"}

    def start(self, file, socket_path):
        plan, start, wait = self.plan, self.processes.start, self.processes.wait
        waiting = []
        for index, link in enumerate(plan["links"]):
            if link["wire"] is not None:
                name, wire = self.wire(index), link["wire"]
                ends = self.interfaces(name)
                waiting.append((start(name, [
                    self.ultima, "wire", "-i", ends[1], "-i", ends[2], "--a-to-b", wire["a_to_b"],
                    "--b-to-a", wire["b_to_a"], "--seed", str(wire["seed"]), "--grpc", wire["grpc"]]), says("joined ")))
        for index, switch in enumerate(plan["switches"]):
            name = switch["name"]
            ports = [part for port, interface in sorted(self.interfaces(name).items())
                     for part in ("-i", f"{port}@{interface}")]
            if self.switch == "embedded":
                command = [self.ultima, "switch", "--grpc", switch["grpc"], "--device-id", str(switch["device_id"])]
                waiting.append((start(name, command + ports), says("listening on ")))
            else:
                # The kernel limits a socket's path, so use the index, not the name.
                notifications = self.processes.folder / f"notifications{index}"
                command = ["simple_switch_grpc", "--no-p4", "--device-id", str(switch["device_id"]),
                           "--thrift-port", str(switch["thrift_port"]),
                           "--notifications-addr", f"ipc://{notifications}"]
                command += ports + ["--", "--grpc-server-addr", switch["grpc"]]
                waiting.append((start(name, command), listens(switch["grpc"])))
        for started, ready in waiting:
            wait(started, ready)
        wait(start("controller", [
            self.ultima, "controller", "serve", "--fabric", file, "--listen", f"unix:{socket_path}",
            "--state", "memory", "--startup-timeout", "30s"]), says("listening on "))
        for index, flow in enumerate(plan["traffic"]):
            rate = [] if flow["udp_rate"] is None else ["--udp-rate", str(flow["udp_rate"])]
            for role, end in (("receive", flow["to"]), ("send", flow["from"])):
                command = [self.ultima, "lab-traffic", role, flow["address"]] + rate
                started = start(f"{role}{index}", command, self.net.get(end))
                if role == "receive":
                    wait(started, says("receiving"))

    def run(self, command):
        """Runs one command and returns its exit code."""
        print(f"*** {command}", flush=True)
        where, _, rest = command.partition(" ")
        if command == "pingall":
            lost = self.net.pingAll()
            print(f"{lost:.0f} % of the pings were lost", flush=True)
            return 0 if lost == 0 else 1
        if where == "sh":
            return subprocess.call(rest, shell=True)
        if where == "job":
            return self.job(split(rest))
        # As at Mininet's prompt, replace hosts' names by their addresses.
        addresses = {host["name"]: host["ip"] for host in self.plan["hosts"]}
        words = [addresses.get(word, word) for word in split(rest)]
        if where == "hosts":
            return self.on_hosts(lambda _: words)
        if where not in addresses:
            raise LaunchError(
                f"{command}: expected job, pingall, hosts COMMAND, sh COMMAND, or HOST COMMAND with the fabric's HOST")
        return self.popen(where, words, stdout=None, stderr=None).wait()

    def popen(self, host, words, **streams):
        return self.net.get(host).popen(words, preexec_fn=die_with_parent, **streams)

    def on_hosts(self, words_of):
        """Runs a command on all hosts at once and prints all output in order. Returns the first failure's exit code."""
        hosts = self.plan["hosts"]
        running = [(host["name"], self.popen(host["name"], words_of(host), stderr=subprocess.STDOUT)) for host in hosts]
        # Read all pipes at once: a command with a full pipe would block.
        readers = ThreadPoolExecutor(len(running))
        try:
            outputs = list(readers.map(lambda one: one[1].communicate()[0], running))
        finally:
            # Before the shutdown, which waits for commands that still run.
            for _, process in running:
                process.poll() is None and process.kill()
            readers.shutdown()
        for (name, _), text in zip(running, outputs):
            print(f"*** {name}\n{text.decode(errors='replace')}", end="", flush=True)
        return next((process.returncode for _, process in running if process.returncode != 0), 0)

    def job(self, options):
        """Creates a job over all hosts, runs its agents and deletes it."""
        members = [host["name"] for host in self.plan["hosts"] for _ in range(host["ranks"])]
        # JSON is YAML.
        created = subprocess.run(
            [self.ultima, "job", "create", "-f", "-"], input=json.dumps({"name": JOB, "members": members}), text=True,
            stdout=subprocess.DEVNULL, check=False)
        if created.returncode != 0:
            return created.returncode
        given = {word.partition("=")[0] for word in options}
        defaults = [word for option in AGENT_DEFAULTS[self.switch].items() if option[0] not in given for word in option]
        try:
            return self.on_hosts(lambda host: [
                self.ultima, "agent", "--job", JOB, "--host", host["name"], "--ranks", str(host["ranks"]), "--verify",
                *defaults, *options])
        finally:
            subprocess.run([self.ultima, "job", "delete", JOB], stdout=subprocess.DEVNULL, check=False)

    def stop(self):
        self.processes.stop()
        self.end_daemons()
        try:
            self.net.stop()
        except AssertionError:
            # A signal interrupted a command in one of Mininet's shells, which ends with this program.
            pass


    def end_daemons(self):
        """Kills daemons that users started on hosts, such as `iperf3 -s -D`."""
        shells = {node.pid for node in [*self.net.hosts, *self.boxes.values()]}
        # Never kill processes outside this program's namespaces.
        others = {network_of(pid) for pid in (1, os.getppid())}
        namespaces = {network_of(pid) for pid in shells | {"self"}} - others - {None}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            if pid != os.getpid() and pid not in shells and network_of(pid) in namespaces:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def prompt(lab):
    """Runs Mininet's prompt with the commands `job` and `hosts`."""
    from mininet.cli import CLI

    class Prompt(CLI):
        prompt = "mininet> "
        # Names of a fabric may have these characters, such as in `my-host ping h2`.
        identchars = CLI.identchars + "-."

        def do_job(self, line):
            """job [OPTION]...: run an AllReduce over all hosts; options are those of `ultima agent`"""
            self.execute(f"job {line}")

        def do_hosts(self, line):
            """hosts COMMAND: run a command on all hosts at once"""
            self.execute(f"hosts {line}")

        @staticmethod
        def execute(command):
            try:
                lab.run(command)
            except LaunchError as error:
                print(f"error: {error}", file=sys.stderr)

    Prompt(lab.net)


def inside(options, ultima):
    """Runs the fabric in the new namespace."""
    from mininet.log import setLogLevel

    setLogLevel("warning" if options.commands else "info")
    # On SIGTERM, stop all processes in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    file = str(Path(options.file).resolve())
    plan = plan_of(ultima, file)
    with tempfile.TemporaryDirectory(prefix="ultima-mininet-") as name:
        folder = Path(name)
        socket_path = folder / "controller.sock"
        os.environ["ULTIMA_CONTROLLER"] = f"unix:{socket_path}"
        os.environ["PATH"] = f"{Path(ultima).parent}:{os.environ['PATH']}"
        lab = Lab(plan, options.switch, ultima, folder)
        try:
            lab.build()
            lab.wait_for_links()
            lab.start(file, socket_path)
            print(f"*** export ULTIMA_CONTROLLER={os.environ['ULTIMA_CONTROLLER']}", flush=True)
            if not options.commands:
                prompt(lab)
                return 0
            return next((code for code in map(lab.run, options.commands) if code != 0), 0)
        finally:
            lab.stop()


def main():
    options = arguments()
    try:
        ultima = find_ultima(options.ultima)
        # Commands inherit the variable, so compare the process id.
        process, _, outer = os.environ.get(INSIDE, "").partition(" ")
        if process != str(os.getpid()) or outer == network_of("self"):
            plan_of(ultima, options.file)
            if os.geteuid() != 0:
                raise LaunchError("Mininet needs root")
            if options.switch == "bmv2" and not shutil.which("simple_switch_grpc"):
                raise LaunchError("simple_switch_grpc is not on the PATH")
            for program, package in (("mnexec", "mininet"), ("ip", "iproute2")):
                if not shutil.which(program):
                    raise LaunchError(f"{program} is not on the PATH; on Debian: apt install {package}")
            os.environ[INSIDE] = f"{os.getpid()} {network_of('self')}"
            os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
        sys.exit(inside(options, ultima))
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
