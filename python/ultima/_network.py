"""This host's addresses."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

_SIOCGIFADDR = 0x8915
# An address that no host has (RFC 5737): the kernel chooses the default route.
_ANYWHERE = "192.0.2.1"


def route_to(host: str | None) -> str:
    """Return the local IPv4 address from which packets to `host` leave; without a host, to anywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for target in (host, _ANYWHERE):
            try:
                # Sends nothing.
                probe.connect((target or _ANYWHERE, 9))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Return whether only this host reaches `address`."""
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str) -> str:
    """Return the name of the interface with `address`, or "?"."""
    if is_loopback(address):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                request = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # It has no IPv4 address.
            if socket.inet_ntoa(request[20:24]) == address:
                return name
    return "?"
