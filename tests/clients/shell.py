"""p4runtime-shell from PyPI against a switch: pipeline, entries, counters, replication, packets, digests.

shell.py GRPC DEVICE_ID P4INFO JSON

The program is switch/tests/programs/controller.p4, its CPU port 64, ports 1 and 2. Exits with status 3 if
the package is not installed.
"""

import sys

import wires

try:
    import p4runtime_sh.shell as sh
    from google.rpc import code_pb2
    from p4runtime_sh.p4runtime import P4RuntimeWriteException
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)

A, B, C = "020000000001", "020000000002", "020000000003"
SOURCE = "020000000009"
# The deadline for a message on a busy machine, in seconds.
TIMEOUT = 60


def mac(address):
    return ":".join(address[i : i + 2] for i in range(0, 12, 2))


def refused(action, code):
    """Checks that a write fails with one error of this code."""
    try:
        action()
    except P4RuntimeWriteException as error:
        ((_, only),) = error.errors
        assert only.canonical_code == code and only.message, only
    else:
        raise AssertionError("the write did not fail")


def forward(address, action, **values):
    entry = sh.TableEntry("IngressPipe.forward")(action=f"IngressPipe.{action}")
    entry.match["hdr.ethernet.dst"] = mac(address)
    for name, value in values.items():
        entry.action[name] = value
    return entry


def entries():
    entry = forward(A, "send", port="2")
    entry.insert()
    refused(entry.insert, code_pb2.ALREADY_EXISTS)
    wires.send(1, wires.frame(A, SOURCE))
    wires.expect(2, wires.frame(A, SOURCE))

    entry.action["port"] = "1"
    entry.modify()
    wires.send(2, wires.frame(A, SOURCE))
    wires.expect(1, wires.frame(A, SOURCE))
    (found,) = sh.TableEntry("IngressPipe.forward").read()
    written, read = entry.msg(), found.msg()
    # The shell writes as many bytes as the type has; the switch returns the canonical form.
    assert written.action.action.params[0].value == b"\x00\x01"
    written.action.action.params[0].value = b"\x01"
    assert read == written, (read, written)

    counter = sh.DirectCounterEntry("IngressPipe.hits")
    counter.table_entry = entry
    (counted,) = counter.read()
    assert counted.packet_count == 2, counted
    counter.packet_count = 0
    counter.modify()
    (counted,) = counter.read()
    assert counted.packet_count == 0, counted

    entry.delete()
    refused(entry.delete, code_pb2.NOT_FOUND)
    assert list(sh.TableEntry("IngressPipe.forward").read()) == []


def default_entry():
    entry = sh.TableEntry("IngressPipe.sources")(is_default=True, action="IngressPipe.learn")
    entry.modify()
    (found,) = sh.TableEntry("IngressPipe.sources")(is_default=True).read()
    assert found.action.action_name == "IngressPipe.learn", found


def replication():
    group = sh.MulticastGroupEntry(7)
    group.add(1, 1).add(2, 2)
    group.insert()
    refused(group.insert, code_pb2.ALREADY_EXISTS)
    group.add(64)
    group.modify()
    (found,) = sh.MulticastGroupEntry().read()
    assert found.group_id == 7
    assert [(it.egress_port, it.instance) for it in found.replicas] == [(1, 1), (2, 2), (64, 0)]
    group.delete()
    assert list(sh.MulticastGroupEntry().read()) == []

    session = sh.CloneSessionEntry(5)
    session.add(64)
    session.insert()
    (found,) = sh.CloneSessionEntry(5).read()
    assert [it.egress_port for it in found.replicas] == [64]


def values(message):
    return [int.from_bytes(it.value, "big") for it in message.packet.metadata]


def packets():
    packets = sh.PacketIn().packet_in_queue
    forward(B, "punt", reason="77").insert()
    wires.send(1, wires.frame(B, SOURCE))
    message = packets.get(timeout=TIMEOUT)
    assert message.packet.payload == wires.frame(B, SOURCE)
    assert values(message) == [1, 0, 77], message

    # The clone session from above makes the copy.
    forward(C, "watch", port="2", session="5").insert()
    wires.send(1, wires.frame(C, SOURCE))
    wires.expect(2, wires.frame(C, SOURCE))
    message = packets.get(timeout=TIMEOUT)
    assert message.packet.payload == wires.frame(C, SOURCE)
    assert values(message) == [0, 1, 1], message

    out = sh.PacketOut(wires.frame(A, SOURCE), egress_port="2", cookie="1000")
    out.send()
    wires.expect(2, wires.frame(A, SOURCE))


def digests():
    lists = sh.DigestList().digest_list_queue
    entry = sh.DigestEntry("sighting_t")
    entry.max_list_size = 2
    entry.max_timeout_ns = 3_600_000_000_000
    entry.ack_timeout_ns = 3_600_000_000_000
    entry.insert()
    (found,) = sh.DigestEntry("sighting_t").read()
    assert found.max_list_size == 2, found
    # The default action of `sources` sends a digest for each packet; two are equal.
    for source in (A, A, B):
        wires.send(2, wires.frame(A, source))
    message = lists.get(timeout=TIMEOUT).digest
    learned = [[it.bitstring for it in data.struct.members] for data in message.data]
    assert learned == [[bytes.fromhex(A), b"\x02"], [bytes.fromhex(B), b"\x02"]], message
    entry.delete()


def main(address, device_id, p4info, program):
    config = sh.FwdPipeConfig(p4info, program)
    sh.setup(int(device_id), address, (0, 1), config=config, verbose=False)
    try:
        assert sh.APIVersion().startswith("1."), sh.APIVersion()
        entries()
        default_entry()
        replication()
        packets()
        digests()
    finally:
        sh.teardown()


if __name__ == "__main__":
    main(*sys.argv[1:])
