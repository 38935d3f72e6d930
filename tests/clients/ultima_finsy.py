"""finsy from PyPI with this project's program: its entries, counters and a group.

ultima_finsy.py GRPC DEVICE_ID P4INFO JSON

Exits with status 3 if the package is not installed.
"""

import asyncio
import sys
from pathlib import Path

try:
    import finsy as fy
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)

MAC = 0x020000000007


async def all_of(switch, entity):
    return [it async for it in switch.read(entity)]


def route(address, port):
    return fy.P4TableEntry(
        "route",
        match=fy.Match(dst_addr=address),
        action=fy.Action("forward", port=port, dst_mac=MAC),
    )


async def routes(switch):
    await switch.insert([route("10.0.0.0/8", 1), route("10.0.0.2/32", 1)])
    await switch.modify([route("10.0.0.2/32", 2)])
    found = await all_of(switch, fy.P4TableEntry("route"))
    ports = sorted(entry.action.args["port"] for entry in found)
    assert ports == [1, 2] and all(it.action.args["dst_mac"] == MAC for it in found), found
    (host,) = await all_of(switch, route("10.0.0.2/32", 2))
    assert host.action.args["port"] == 2, host
    await switch.delete([host])
    assert len(await all_of(switch, fy.P4TableEntry("route"))) == 1


async def counters(switch):
    data = fy.P4CounterData(packet_count=5)
    await switch.modify([fy.P4CounterEntry("received", index=3, data=data)])
    cells = [it.packet_count for it in await all_of(switch, fy.P4CounterEntry("received"))]
    assert cells[3] == 5 and sum(cells) == 5, cells


async def groups(switch):
    group = fy.P4MulticastGroupEntry(9, replicas=[(1, 0), (2, 1)])
    await switch.insert([group])
    (found,) = await all_of(switch, fy.P4MulticastGroupEntry())
    assert found.replicas_str() == group.replicas_str(), found


async def main(address, device_id, p4info, program):
    options = fy.SwitchOptions(
        p4info=Path(p4info), p4blob=Path(program), device_id=int(device_id)
    )
    async with fy.Switch("switch", address, options) as switch:
        await routes(switch)
        await counters(switch)
        await groups(switch)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
