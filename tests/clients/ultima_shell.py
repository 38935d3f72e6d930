"""p4runtime-shell from PyPI with this project's program: its entries, counters and a group.

ultima_shell.py GRPC DEVICE_ID P4INFO JSON

Exits with status 3 if the package is not installed.
"""

import sys

try:
    import p4runtime_sh.shell as sh
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)

MAC = "02:00:00:00:00:07"


def route(address, port):
    entry = sh.TableEntry("UltimaIngress.routing.route")(action="UltimaIngress.routing.forward")
    entry.match["dst_addr"] = address
    entry.action["port"] = str(port)
    entry.action["dst_mac"] = MAC
    return entry


def routes():
    route("10.0.0.0/8", 1).insert()
    host = route("10.0.0.2/32", 1)
    host.insert()
    host.action["port"] = "2"
    host.modify()
    found = {}
    for entry in sh.TableEntry("UltimaIngress.routing.route").read():
        (match,) = entry.msg().match
        port, mac = (it.value for it in entry.msg().action.action.params)
        assert mac == bytes.fromhex(MAC.replace(":", "")).lstrip(b"\0"), entry
        found[match.lpm.value, match.lpm.prefix_len] = port
    assert found == {(b"\x0a\0\0\0", 8): b"\x01", (b"\x0a\0\0\x02", 32): b"\x02"}, found
    host.delete()
    assert len(list(sh.TableEntry("UltimaIngress.routing.route").read())) == 1


def counters():
    cell = sh.CounterEntry("UltimaIngress.admission.received")
    cell.index = 3
    cell.packet_count = 5
    cell.modify()
    cells = [it.packet_count for it in sh.CounterEntry("UltimaIngress.admission.received").read()]
    assert cells[3] == 5 and sum(cells) == 5, cells


def groups():
    group = sh.MulticastGroupEntry(9)
    group.add(1, 0).add(2, 1)
    group.insert()
    (found,) = sh.MulticastGroupEntry().read()
    assert [(it.egress_port, it.instance) for it in found.replicas] == [(1, 0), (2, 1)], found


def main(address, device_id, p4info, program):
    config = sh.FwdPipeConfig(p4info, program)
    sh.setup(int(device_id), address, (0, 1), config=config, verbose=False)
    try:
        routes()
        counters()
        groups()
    finally:
        sh.teardown()


if __name__ == "__main__":
    main(*sys.argv[1:])
