"""finsy from PyPI against a switch: pipeline, entries, counters, replication, packets, digests.

finsy_client.py GRPC DEVICE_ID P4INFO JSON

The program is switch/tests/programs/controller.p4, its CPU port 64, ports 1 and 2. Exits with status 3 if
the package is not installed.
"""

import asyncio
import sys
from pathlib import Path

import wires

try:
    import finsy as fy
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)

A, B, C = "020000000001", "020000000002", "020000000003"
SOURCE = "020000000009"
HOUR = 3_600_000_000_000
# The deadline for a message on a busy machine, in seconds.
TIMEOUT = 60


def forward(address, action=None):
    match = fy.Match({"hdr.ethernet.dst": int(address, 16)})
    return fy.P4TableEntry("forward", match=match, action=action)


async def all_of(switch, entity):
    return [it async for it in switch.read(entity)]


async def refused(writing, code):
    try:
        await writing
    except fy.P4ClientError as error:
        codes = [it.canonical_code for it in error.details.values()]
        assert codes == [code], error
    else:
        raise AssertionError("the write did not fail")


async def entries(switch):
    entry = forward(A, fy.Action("send", port=2))
    await switch.insert([entry])
    await refused(switch.insert([entry]), fy.GRPCStatusCode.ALREADY_EXISTS)
    wires.send(1, wires.frame(A, SOURCE))
    wires.expect(2, wires.frame(A, SOURCE))

    await switch.modify([forward(A, fy.Action("send", port=1))])
    wires.send(2, wires.frame(A, SOURCE))
    wires.expect(1, wires.frame(A, SOURCE))
    (found,) = await all_of(switch, fy.P4TableEntry("forward"))
    assert found.action.args == {"port": 1}, found

    counter = fy.P4DirectCounterEntry("hits", table_entry=forward(A))
    (counted,) = await all_of(switch, counter)
    assert counted.packet_count == 2, counted
    (counted,) = await all_of(switch, fy.P4DirectCounterEntry("hits"))
    assert counted.packet_count == 2, counted

    # One update of a batch fails, and the error names it; the other is done.
    batch = switch.write([-forward(B), +forward(B, fy.Action("drop"))])
    await refused(batch, fy.GRPCStatusCode.NOT_FOUND)
    assert len(await all_of(switch, fy.P4TableEntry("forward"))) == 2
    await switch.delete([forward(A), forward(B)])
    await switch.delete([forward(A)], strict=False)
    assert await all_of(switch, fy.P4TableEntry()) == []


async def replication(switch):
    group = fy.P4MulticastGroupEntry(7, replicas=[(1, 1), (2, 2)], metadata=b"ours")
    await switch.insert([group])
    session = fy.P4CloneSessionEntry(5, replicas=[64])
    await switch.insert([session])
    (found,) = await all_of(switch, fy.P4MulticastGroupEntry())
    assert found.multicast_group_id == 7 and found.metadata == b"ours", found
    assert found.replicas_str() == group.replicas_str(), found
    (found,) = await all_of(switch, fy.P4CloneSessionEntry(5))
    assert found.replicas_str() == session.replicas_str(), found


async def packets(switch):
    incoming = switch.read_packets()
    first = asyncio.create_task(anext(incoming))
    punt = forward(B, fy.Action("punt", reason=77))
    watch = forward(C, fy.Action("watch", port=2, session=5))
    await switch.insert([punt, watch])
    wires.send(1, wires.frame(B, SOURCE))
    packet = await asyncio.wait_for(first, TIMEOUT)
    assert packet.payload == wires.frame(B, SOURCE), packet
    assert packet.metadata == {"ingress_port": 1, "is_clone": 0, "reason": 77}, packet

    wires.send(1, wires.frame(C, SOURCE))
    wires.expect(2, wires.frame(C, SOURCE))
    packet = await asyncio.wait_for(anext(incoming), TIMEOUT)
    assert packet.payload == wires.frame(C, SOURCE), packet
    assert packet.metadata == {"ingress_port": 0, "is_clone": 1, "reason": 1}, packet

    out = fy.P4PacketOut(wires.frame(A, SOURCE), egress_port=2, padding=0, cookie=1000)
    await switch.write([out])
    await asyncio.to_thread(wires.expect, 2, wires.frame(A, SOURCE))


async def digests(switch):
    learn = fy.P4TableEntry("sources", action=fy.Action("learn"), is_default_action=True)
    digest = fy.P4DigestEntry(
        "sighting_t", max_list_size=2, max_timeout_ns=HOUR, ack_timeout_ns=HOUR
    )
    await switch.write([~learn, +digest])
    (found,) = await all_of(switch, fy.P4DigestEntry("sighting_t"))
    assert found == digest, found
    lists = switch.read_digests("sighting_t")
    first = asyncio.create_task(anext(lists))
    for source in (A, A, B):
        wires.send(2, wires.frame(A, source))
    learned = await asyncio.wait_for(first, TIMEOUT)
    expected = [{"address": int(it, 16), "port": 2} for it in (A, B)]
    assert learned.data == expected, learned
    # After an acknowledgement, the switch sends a digest of the same values again.
    await switch.write([learned.ack(), fy.P4PacketOut(b"", egress_port=511, padding=0, cookie=0)])
    second = asyncio.create_task(anext(lists))
    await asyncio.to_thread(wires.send, 1, wires.frame(A, A))
    # The switch does not report that it has read the acknowledgement. Until then it does not send B again.
    for _ in range(int(TIMEOUT / 0.1)):
        await asyncio.to_thread(wires.send, 2, wires.frame(A, B))
        if (await asyncio.wait({second}, timeout=0.1))[0]:
            break
    learned = await asyncio.wait_for(second, TIMEOUT)
    assert learned.data == [{"address": int(A, 16), "port": 1}, expected[1]], learned


async def main(address, device_id, p4info, program):
    options = fy.SwitchOptions(
        p4info=Path(p4info), p4blob=Path(program), device_id=int(device_id)
    )
    async with fy.Switch("switch", address, options) as switch:
        assert switch.is_primary and switch.p4runtime_version.major == 1
        await entries(switch)
        await replication(switch)
        await packets(switch)
        await digests(switch)
        await switch.delete_all()
        entities = [fy.P4TableEntry(), fy.P4MulticastGroupEntry(), fy.P4CloneSessionEntry()]
        assert await all_of(switch, entities) == []
        assert await all_of(switch, fy.P4DigestEntry()) == []


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
