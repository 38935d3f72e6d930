"""The hosts' ends of a switch's ports, for a client that a test runs.

The test owns the ends. Commands go to it on standard output, one per line, and its answers come on standard
input.
"""

import os
import sys

# The output of libraries must not reach the test.
_commands = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def _command(text):
    print(text, file=_commands, flush=True)
    answer = sys.stdin.readline().strip()
    if answer != "ok":
        raise AssertionError(f"{text.split()[0]}: {answer or 'the test has ended'}")


def send(port, frame):
    """Sends a frame into a port."""
    _command(f"send {port} {frame.hex()}")


def expect(port, frame):
    """Waits for the next frame from a port, which must be this one."""
    _command(f"expect {port} {frame.hex()}")


def frame(destination, source, ethertype=0x88B5):
    """An Ethernet frame of 60 bytes."""
    return bytes.fromhex(destination + source) + ethertype.to_bytes(2, "big") + bytes(46)
