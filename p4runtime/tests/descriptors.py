"""Prints the descriptors of the installed Python package `p4runtime`.

One line per .proto file: the bytes of its FileDescriptorProto in hexadecimal. The script takes them
from the literal in the generated module's source and does not import the module: only some versions
of protobuf can import it, depending on the protoc that generated it.

Exits with status 3 if a module is not installed.
"""

import ast
import importlib.util
import sys

MODULES = [
    "google.rpc.status_pb2",
    "p4.v1.p4data_pb2",
    "p4.config.v1.p4types_pb2",
    "p4.config.v1.p4info_pb2",
    "p4.v1.p4runtime_pb2",
]


def source_of(module):
    """Text of a module that is installed but not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        print(f"the Python module {module} is not installed", file=sys.stderr)
        sys.exit(3)
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


def serialized_descriptor(source):
    """The literal that generated code passes to the descriptor pool.

    Modules of protoc 3.20 and later call AddSerializedFile(b"..."), those of earlier ones
    FileDescriptor(..., serialized_pb=b"...").
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "AddSerializedFile":
            return node.args[0].value
        if node.func.attr == "FileDescriptor":
            for keyword in node.keywords:
                if keyword.arg == "serialized_pb":
                    return keyword.value.value
    raise SystemExit("a generated module has no serialized descriptor")


for name in MODULES:
    print(serialized_descriptor(source_of(name)).hex())
