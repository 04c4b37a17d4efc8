"""IP addresses and networks in the syntax of Go's net/netip, without zones and IPv4-mapped addresses.

Follows k8s.io/apiserver pkg/cel/library/ip.go and cidr.go.
"""

import re
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final

from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.values import EvalError

Address = IPv4Address | IPv6Address
Network = IPv4Interface | IPv6Interface
_BITS: Final = re.compile(r"(?:0|[1-9][0-9]{0,2})\Z")


def parse_ip(text: str) -> Address:
    address = _address(text)
    if address is None:
        raise EvalError(f"IP Address {text[:80]!r} parse error during conversion from string")
    return address


def _address(text: str) -> Address | None:
    if len(text) > 64 or not text.isascii() or "%" in text or "/" in text:
        return None
    try:
        if ":" not in text:
            return IPv4Address(text)
        address = IPv6Address(text)
    except ValueError:
        return None
    return None if address.ipv4_mapped is not None else address


def parse_cidr(text: str) -> Network:
    network = _network(text)
    if network is None:
        raise EvalError(f"network address parse error during conversion from string: {text[:80]!r}")
    return network


def _network(text: str) -> Network | None:
    host, slash, bits = text.rpartition("/")
    address = _address(host)
    if not slash or address is None or not _BITS.match(bits) or int(bits) > address.max_prefixlen:
        return None
    return (
        IPv4Interface((address, int(bits))) if isinstance(address, IPv4Address) else IPv6Interface((address, int(bits)))
    )


def _first_words(address: Address) -> int:
    return int(address) >> (address.max_prefixlen - 16)


def is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return int(address) >> 8 == 0xE00000
    return _first_words(address) & 0xFF0F == 0xFF02


def is_link_local_unicast(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return _first_words(address) == 0xA9FE
    return _first_words(address) & 0xFFC0 == 0xFE80


def _is_loopback(address: Address) -> bool:
    return int(address) >> 24 == 127 if isinstance(address, IPv4Address) else int(address) == 1


def is_global_unicast(address: Address) -> bool:
    multicast = _first_words(address) >> 12 == 0xE if address.version == 4 else _first_words(address) >> 8 == 0xFF
    broadcast = address.version == 4 and int(address) == 2**32 - 1
    special = int(address) == 0 or _is_loopback(address) or is_link_local_unicast(address)
    return not (special or multicast or broadcast)


def contains_ip(network: Network, other: Address | str) -> bool:
    address = parse_ip(other) if isinstance(other, str) else other
    return address.version == network.version and address in network.network


def contains_cidr(network: Network, other: Network | str) -> bool:
    inner = parse_cidr(other) if isinstance(other, str) else other
    if inner.version != network.version or network.network.prefixlen > inner.network.prefixlen:
        return False
    return inner.ip in network.network


def masked(network: Network) -> Network:
    return _network(str(network.network)) or network


def ip_of(value: Network | str) -> Address:
    """``ip(string)`` and ``cidr.ip()``."""
    return parse_ip(value) if isinstance(value, str) else value.ip


FUNCTIONS: Final[dict[str, Function]] = {
    "ip": ip_of,
    "isIP": lambda text: _address(text) is not None,
    "ip.isCanonical": lambda text: str(parse_ip(text)) == text,
    "family": lambda address: address.version,
    "isUnspecified": lambda address: int(address) == 0,
    "isLoopback": _is_loopback,
    "isLinkLocalMulticast": is_link_local_multicast,
    "isLinkLocalUnicast": is_link_local_unicast,
    "isGlobalUnicast": is_global_unicast,
    "cidr": parse_cidr,
    "isCIDR": lambda text: _network(text) is not None,
    "containsIP": contains_ip,
    "containsCIDR": contains_cidr,
    "prefixLength": lambda network: network.network.prefixlen,
    "masked": masked,
}
"""Implementations by function, for all overloads of each."""
