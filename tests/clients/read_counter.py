"""A P4Runtime client without code of this repository: PyPI's p4runtime and grpcio.

read_counter.py GRPC DEVICE_ID COUNTER INDEX

Asks the switch which program it runs, looks the counter up by name in that program's P4Info, and for each
line on standard input reads the cell once and prints "PACKETS BYTES". It takes no part in arbitration.

Exits with status 3 if a package is not installed.
"""

import os
import sys

# The package's modules were generated for an older protobuf; newer ones run them in pure Python only.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

try:
    import grpc
    from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)


def main(address, device_id, counter, index):
    with grpc.insecure_channel(address) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        switch = p4runtime_pb2_grpc.P4RuntimeStub(channel)

        ask = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=device_id)
        ask.response_type = ask.P4INFO_AND_COOKIE
        p4info = switch.GetForwardingPipelineConfig(ask).config.p4info
        ids = {it.preamble.name: it.preamble.id for it in p4info.counters}

        request = p4runtime_pb2.ReadRequest(device_id=device_id)
        cell = request.entities.add().counter_entry
        cell.counter_id = ids[counter]
        cell.index.index = index
        for _ in sys.stdin:
            (entity,) = [it for answer in switch.Read(request) for it in answer.entities]
            data = entity.counter_entry.data
            print(data.packet_count, data.byte_count, flush=True)


if __name__ == "__main__":
    grpc_address, device, name, cell_index = sys.argv[1:]
    main(grpc_address, int(device), name, int(cell_index))
