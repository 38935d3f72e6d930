r"""Runs the vectors of p4/vectors/ on a switch that serves P4Runtime, under PTF.

    pip install ptf p4runtime PyYAML grpcio "protobuf==3.20.*" "googleapis-common-protos<1.60"
    ptf --test-dir p4/ptf --interface 1@veth1 --interface 2@veth2 --interface 3@veth3 --interface 4@veth4 \
        --test-params "grpc='switch:9559';target='tofino';ports='132,140,148,156'"

Interface n leads to the vectors' port n. The parameters:

grpc       where the switch listens; else localhost:9559
device_id  the switch's; else 1
target     v1model, tofino or tofino2; else tofino
compiled   the folder of what the compiler printed, which is pushed before each vector file; else p4/compiled/ and the target
server     stratum or pi: as which of them the switch takes a program for Tofino; else stratum
ports      what P4Runtime calls the vectors' ports 1 to 4; else 1,2,3,4
"""

import os
import queue
import re
import socket
import struct
import threading
import time
from pathlib import Path

# The package's modules were generated for an older protobuf; newer ones run them in pure Python only.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

import grpc
import ptf
import ptf.testutils as testutils
import yaml
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from ptf.base_tests import BaseTest

P4 = Path(__file__).resolve().parent.parent
SETUP = "setup.yaml"
SETUP_OF_V1MODEL = "setup_of_v1model.yaml"
SETUP_OF_TOFINO = "setup_of_tofino.yaml"
# Of each target the port whose packets come in again.
RECIRCULATION = {"v1model": 510, "tofino": 68, "tofino2": 6}
# The table that the emulation of a Tofino (docs/testbed.md) lacks.
CUTS = "UltimaEgress.mirrors.session"
# Match fields, parameters and members whose values are ports, and arrays whose indices are.
PORTS = {"ingress_port", "egress_port", "port"}
BY_PORT = {"UltimaIngress.malformed", "UltimaIngress.unrouted", "UltimaEgress.queue.port_rate"}
# Arrays that have so many cells for each source, and one more than the highest index of a job, share or source in the vectors.
GAPS, DIGITS, INDICES = "UltimaIngress.upstream.gaps.", 16, 5
# Timeout of an expected packet or digest, in seconds.
TIMEOUT = 2
# Timeout for a chip's ports to come up again, in seconds.
PORTS_TIMEOUT = 60
# Type, and what is before the addresses, of a request for IPv4 over Ethernet.
ARP = bytes.fromhex("0806 0001 0800 06 04 0001")
# What P4Runtime calls the program and its pipeline, and the pipes that it runs in: as the controller has it.
NAME, PIPELINE, PIPES = b"ultima", b"pipe", bytes([0, 1, 2, 3])


def packed(compiled, target, server):
    """A target's p4_device_config of what the compiler printed into a folder."""
    if target == "v1model":
        return (compiled / "ultima.json").read_bytes()
    context = (compiled / "pipe" / "context.json").read_bytes()
    binary = (compiled / "pipe" / f"{target}.bin").read_bytes()
    if server == "pi":
        return b"".join(struct.pack("<I", len(part)) + part for part in (NAME, binary, context))
    bfrt = (compiled / "bfrt.json").read_bytes()
    # Stratum's BfPipelineConfig (stratum/hal/lib/barefoot/bf.proto), whose modules no package of PyPI has.
    profile = sized(1, PIPELINE) + sized(2, context) + sized(3, binary) + sized(4, PIPES)
    return sized(1, NAME) + sized(2, bfrt) + sized(3, profile)


def sized(number, value):
    """A field of a protobuf message whose value is behind its length."""
    length = len(value)
    size = bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes(size) + bytes([length]) + value


class Switch:
    """A P4Runtime client that knows the program's names."""

    def __init__(self, address, device_id, p4info, config):
        self.device_id = device_id
        self.config = config
        self.p4info = text_format.Parse(p4info, p4info_pb2.P4Info())
        self.channel = grpc.insecure_channel(address)
        grpc.channel_ready_future(self.channel).result(timeout=10)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.election_id = p4runtime_pb2.Uint128(low=1)
        first = p4runtime_pb2.StreamMessageRequest()
        first.arbitration.device_id = device_id
        first.arbitration.election_id.CopyFrom(self.election_id)
        self.requests = queue.SimpleQueue()
        self.requests.put(first)
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None))
        answer = next(self.stream)
        if answer.arbitration.status.code != 0:
            raise AssertionError(f"another controller is primary: {answer}")
        self.digests = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        """Collects and acknowledges digests until the stream ends."""
        try:
            for message in self.stream:
                if not message.HasField("digest"):
                    continue
                ack = p4runtime_pb2.StreamMessageRequest()
                ack.digest_ack.digest_id = message.digest.digest_id
                ack.digest_ack.list_id = message.digest.list_id
                self.requests.put(ack)
                for data in message.digest.data:
                    self.digests.put((message.digest.digest_id, data))
        except grpc.RpcError:
            # We have ended it; a switch that has is noticed when it is asked.
            pass

    def next_digest(self, timeout):
        """Returns the next digest by members' names, or None if there is none in time."""
        try:
            digest_id, data = self.digests.get(timeout=timeout)
        except queue.Empty:
            return None
        digest = next(it for it in self.p4info.digests if it.preamble.id == digest_id)
        members = self.p4info.type_info.structs[digest.type_spec.struct.name].members
        values = (int.from_bytes(it.bitstring, "big") for it in data.struct.members)
        return dict(zip((it.name for it in members), values))

    def close(self):
        self.requests.put(None)
        self.stream.cancel()
        self.channel.close()

    def push(self):
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device_id)
        request.election_id.CopyFrom(self.election_id)
        request.action = request.VERIFY_AND_COMMIT
        request.config.p4info.CopyFrom(self.p4info)
        request.config.p4_device_config = self.config
        self.stub.SetForwardingPipelineConfig(request)

    def named(self, kind, name):
        for it in getattr(self.p4info, kind):
            if it.preamble.name == name:
                return it
        raise AssertionError(f"the program has no {name} among its {kind}")

    def has(self, kind, name):
        return any(it.preamble.name == name for it in getattr(self.p4info, kind))

    def write(self, updates):
        request = p4runtime_pb2.WriteRequest(device_id=self.device_id)
        request.election_id.CopyFrom(self.election_id)
        for kind, entity in updates:
            update = request.updates.add()
            update.type = getattr(p4runtime_pb2.Update, kind)
            update.entity.CopyFrom(entity)
        self.stub.Write(request)

    def counts(self, array, indices):
        """Packets by index, of those of these cells that are not zero."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id)
        for index in indices:
            entry = request.entities.add().counter_entry
            entry.counter_id = self.named("counters", array).preamble.id
            # 0, too, is an index, and none a wildcard.
            entry.index.SetInParent()
            entry.index.index = index
        cells = [it.counter_entry for answer in self.stub.Read(request) for it in answer.entities]
        return {it.index.index: it.data.packet_count for it in cells if it.data.packet_count}


class Vectors(BaseTest):
    """Every file of p4/vectors/, each from an empty program on."""

    def setUp(self):
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()
        target = testutils.test_param_get("target", "tofino")
        numbers = testutils.test_param_get("ports", "1,2,3,4")
        numbers = numbers if isinstance(numbers, (list, tuple)) else str(numbers).split(",")
        self.ports = {n + 1: int(number) for n, number in enumerate(numbers)}
        self.v1model = target == "v1model"
        self.recirculation = RECIRCULATION[target]
        compiled = Path(testutils.test_param_get("compiled", P4 / "compiled" / target))
        self.switch = Switch(
            testutils.test_param_get("grpc", "localhost:9559"),
            int(testutils.test_param_get("device_id", 1)),
            (compiled / "ultima.p4info.txtpb").read_text(),
            packed(compiled, target, testutils.test_param_get("server", "stratum")),
        )

    def tearDown(self):
        self.switch.close()
        super().tearDown()

    def runTest(self):
        files = sorted((P4 / "vectors").glob("*.yaml"))
        for file in files:
            if file.name not in (SETUP, SETUP_OF_V1MODEL, SETUP_OF_TOFINO):
                self.run_file(file)

    def run_file(self, file):
        vectors = yaml.safe_load(file.read_text())
        setups = [SETUP, SETUP_OF_V1MODEL if self.v1model else SETUP_OF_TOFINO]
        entries = [yaml.safe_load((P4 / "vectors" / setup).read_text())["entries"] for setup in setups]
        if not self.switch.has("tables", CUTS):
            # It looks like a Tofino, and forwards by v1model's program, which has no need of this table.
            for part in entries:
                part["tables"] = [row for row in part.get("tables", []) if row["table"] != CUTS]
        updates = [it for part in entries + [vectors.get("entries", {})] for it in self.updates(part)]
        self.switch.push()
        self.switch.write(updates)
        self.wait_for_ports(file.name)
        for step in vectors["packets"]:
            self.run_step(f"{file.name}, {step['name']}", step)
        arrays = [it.preamble.name for it in self.switch.p4info.counters]
        assert set(vectors["counters"]) <= set(arrays), f"{file.name}: the program has not all counters that are named"
        for array in arrays:
            counts = vectors["counters"].get(array, {})
            if array in BY_PORT:
                counts = {self.ports[port]: count for port, count in counts.items()}
            counted = self.switch.counts(array, self.indices(array))
            assert counted == counts, f"{file.name}: {array} has counted {counted}, not {counts}"
        # Not every switch forgets groups and sessions with the program.
        deletable = [("DELETE", entity) for kind, entity in reversed(updates) if kind == "INSERT"]
        self.switch.write(deletable)

    def wait_for_ports(self, name):
        """Waits until each port has answered: a push takes them down for a while."""
        for port in self.ports:
            deadline = time.monotonic() + PORTS_TIMEOUT
            # ARP for the host at that port, which is counted nowhere.
            mac, ip = bytes([2, 0, 0, 0, 0, port]), bytes([10, 0, 0, port])
            asked = ARP + mac + bytes([10, 0, 0, 254]) + bytes(6) + ip
            while True:
                testutils.send_packet(self, port, b"\xff" * 6 + mac + asked)
                result = self.dataplane.poll(device_number=0, port_number=port, timeout=0.5)
                if isinstance(result, self.dataplane.PollSuccess):
                    break
                if time.monotonic() > deadline:
                    raise AssertionError(f"{name}: port {port} does not answer ARP {PORTS_TIMEOUT} s after the push")
        # An answer that came late is none to a packet.
        while isinstance(self.dataplane.poll(device_number=0, timeout=0.5), self.dataplane.PollSuccess):
            pass

    def indices(self, array):
        """Those of an array's cells that a vector's packets may be counted in."""
        if array in BY_PORT:
            return self.ports.values()
        if array.startswith(GAPS):
            # A chip counts at 0, too, where a source has no index (docs/dataplane.md).
            return range(0 if self.v1model else DIGITS, DIGITS * INDICES)
        return range(INDICES)

    def run_step(self, name, step):
        self.dataplane.flush()
        numbers = step.get("numbers", {"from": 0, "to": 0})
        for number in range(numbers["from"], numbers["to"] + 1):
            testutils.send_packet(self, step["port"], bytes(pattern(step["frame"], number)))
            for expected in step["out"]:
                self.expect(name, expected["port"], pattern(expected["frame"], number))
        for members in step.get("digests", []):
            members = {member: self.ports[it] if member in PORTS else it for member, it in members.items()}
            digest = self.switch.next_digest(TIMEOUT)
            assert digest == members, f"{name}: digest {digest}, expected {members}"
        digest = self.switch.next_digest(0.1)
        assert digest is None, f"{name}: unexpected digest {digest}"
        result = self.dataplane.poll(device_number=0, timeout=0.2)
        if isinstance(result, self.dataplane.PollSuccess):
            raise AssertionError(f"{name}: out of port {result.port} comes {result.packet.hex()}, too")

    def expect(self, name, port, expected):
        result = self.dataplane.poll(device_number=0, port_number=port, timeout=TIMEOUT)
        if not isinstance(result, self.dataplane.PollSuccess):
            raise AssertionError(f"{name}: nothing comes out of port {port}")
        # A link pads short frames.
        frame, padding = result.packet[: len(expected)], result.packet[len(expected) :]
        if len(frame) < len(expected) or any(padding) or len(result.packet) > max(60, len(expected)):
            raise AssertionError(f"{name}: out of port {port} come {len(result.packet)} bytes, not {len(expected)}")
        for at, (byte, wanted) in enumerate(zip(frame, expected)):
            if wanted is not None and byte != wanted:
                raise AssertionError(f"{name}: byte {at} out of port {port} is {byte:02x}, not {wanted:02x}")
        if udp_sum(frame) not in (None, 0xFFFF):
            raise AssertionError(f"{name}: the UDP checksum out of port {port} is wrong")

    def updates(self, entries):
        updates = []
        for group in entries.get("groups", []):
            entity = p4runtime_pb2.Entity()
            entry = entity.packet_replication_engine_entry.multicast_group_entry
            entry.multicast_group_id = group["group"]
            for replica in group["replicas"]:
                entry.replicas.add(egress_port=self.ports[replica["port"]], instance=replica["rid"])
            updates.append(("INSERT", entity))
        for session in entries.get("sessions", []):
            entity = p4runtime_pb2.Entity()
            entry = entity.packet_replication_engine_entry.clone_session_entry
            entry.session_id = session["session"]
            entry.packet_length_bytes = session["bytes"]
            port = session["port"]
            entry.replicas.add(egress_port=self.recirculation if port == "recirculation" else self.ports[port])
            updates.append(("INSERT", entity))
        for row in entries.get("tables", []):
            updates.append(("INSERT", self.row(row)))
        for cell in entries.get("meters", []):
            entity = p4runtime_pb2.Entity()
            entity.meter_entry.meter_id = self.switch.named("meters", cell["meter"]).preamble.id
            index = cell["index"]
            entity.meter_entry.index.index = self.ports[index] if cell["meter"] in BY_PORT else index
            for field in ("cir", "cburst", "pir", "pburst"):
                setattr(entity.meter_entry.config, field, cell[field])
            updates.append(("MODIFY", entity))
        for digest in entries.get("digests", []):
            entity = p4runtime_pb2.Entity()
            entity.digest_entry.digest_id = self.switch.named("digests", digest).preamble.id
            entity.digest_entry.config.max_timeout_ns = 10_000_000
            entity.digest_entry.config.max_list_size = 1
            entity.digest_entry.config.ack_timeout_ns = 1_000_000_000
            updates.append(("INSERT", entity))
        return updates

    def row(self, row):
        table = self.switch.named("tables", row["table"])
        action = self.switch.named("actions", row["action"])
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = table.preamble.id
        for field in table.match_fields:
            value, prefix = self.value(field.name, row["match"][field.name])
            match = entity.table_entry.match.add(field_id=field.id)
            if field.match_type == p4info_pb2.MatchField.LPM:
                match.lpm.value, match.lpm.prefix_len = value, prefix
            else:
                match.exact.value = value
        call = entity.table_entry.action.action
        call.action_id = action.preamble.id
        for param in action.params:
            call.params.add(param_id=param.id, value=self.value(param.name, row["params"][param.name])[0])
        return entity

    def value(self, name, value):
        """A value's canonical bytes, and its bits that count where it is a prefix."""
        if isinstance(value, int):
            value = self.ports[value] if name in PORTS else value
            return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"), None
        if ":" in value:
            octets, prefix = bytes.fromhex(value.replace(":", "")), None
        else:
            address, _, prefix = value.partition("/")
            octets, prefix = socket.inet_aton(address), int(prefix) if prefix else None
        return octets.lstrip(b"\0") or b"\0", prefix


def pattern(text, number=0):
    """The bytes of a frame as it is written (setup.yaml), None for any byte."""
    words = re.sub(r"#.*", "", text).replace("nnnnnnnn", f"{number:08x}").split()
    digits = "".join(part * int(times or 1) for part, _, times in (word.partition("*") for word in words))
    pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
    return [None if pair == ".." else int(pair, 16) for pair in pairs]


def udp_sum(frame):
    """The sum over a UDP datagram and its pseudo-header (RFC 768): all ones if it is right, None if there is none."""
    ipv4, udp = 14, 34
    if len(frame) < udp + 8 or frame[12:14] != b"\x08\x00" or frame[ipv4 + 9] != 17:
        return None
    length = int.from_bytes(frame[udp + 4 : udp + 6], "big")
    if frame[udp + 6 : udp + 8] == b"\0\0" or len(frame) < udp + length:
        return None
    summed = frame[ipv4 + 12 : udp] + frame[udp : udp + length] + b"\0" * (length % 2)
    total = 17 + length + sum(int.from_bytes(summed[at : at + 2], "big") for at in range(0, len(summed), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total
