"""IP addresses and networks in the syntax of Go's net/netip, without zones and IPv4-mapped addresses (k8s.io/apiserver
pkg/cel/library/ip.go, cidr.go), and URLs in the syntax of net/url of Go 1.26: absolute or a path, with strict ports."""

import ipaddress
import re
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final

from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.values import CelMap, EvalError, Url, spend

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
    return parse_ip(value) if isinstance(value, str) else value.ip


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)?:")
_PORT: Final = re.compile(r"(?::[0-9]*)?\Z")
_USER: Final = re.compile(r"[A-Za-z0-9._:~!$&'()*+,;=%@-]*\Z")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_HOST_BYTES: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~!$&'()*+,;=:[]<>\"")
_PATH_SAFE: Final = "$&+,/:;=@-_.~"
_PATH_VALID: Final = re.compile(rb"[A-Za-z0-9._~$&+,/:;=@!'()*\[\]%-]*\Z")


def _error(why: str) -> EvalError:
    return EvalError(f"URL parse error during conversion from string: {why}")


def parse_url(text: str) -> Url:
    _parsed(text, request=True)
    before, _, fragment = text.partition("#")
    scheme, host, path, query, shown = _parsed(before, request=False)
    if fragment:
        _unescaped(fragment)
    return Url(scheme, host, path, query, shown + ("#" + fragment if fragment else ""))


def is_url(text: str) -> bool:
    try:
        _parsed(text, request=True)
    except EvalError:
        return False
    return True


def _parsed(text: str, request: bool) -> tuple[str, str, str, str, str]:
    if any(c < " " or c == "\x7f" for c in text):
        raise _error("invalid control character in URL")
    if not text and request:
        raise _error("empty url")
    if text == "*":
        return "", "", "*", "", "*"
    found = _SCHEME.match(text)
    if found is not None and found[1] is None:
        raise _error("missing protocol scheme")
    scheme, rest = (found[1].lower(), text[found.end() :]) if found is not None else ("", text)
    rest, mark, query = rest.partition("?")
    shown_query = mark + query
    if not rest.startswith("/"):
        if scheme:
            return scheme, "", "", query, f"{scheme}:{rest}{shown_query}"
        if request:
            raise _error("invalid URI for request")
        if ":" in rest.partition("/")[0]:
            raise _error("first path segment in URL cannot contain colon")
    host, authority = "", ""
    if (scheme or (not request and not rest.startswith("///"))) and rest.startswith("//"):
        authority, slash, rest = rest[2:].partition("/")
        rest = slash + rest
        host = _host(scheme, authority)
        authority = "//" + authority if authority or rest else ""
    path = _escaped_path(rest)
    return scheme, host, path, query, (f"{scheme}:" if scheme else "") + authority + path + shown_query


def _host(scheme: str, authority: str) -> str:
    user, at, host = authority.rpartition("@")
    if at:
        if not _USER.match(user):
            raise _error("invalid userinfo")
        _unescaped(user)
    if "[" in host:
        return _bracketed(host)
    if ":" in host:
        first, last = host.index(":"), host.rindex(":")
        port = host[last if scheme not in {"http", "https"} else first :]
        if not _PORT.match(port):
            raise _error(f"invalid port {port!r} after host")
    return _unescaped_host(host)


def _bracketed(host: str) -> str:
    if host.rindex("[") > 0:
        raise _error("invalid IP-literal")
    inner, bracket, port = host[1:].rpartition("]")
    if not bracket:
        raise _error("missing ']' in host")
    if not _PORT.match(port):
        raise _error(f"invalid port {port!r} after host")
    name, zone_mark, zone = inner.partition("%25")
    address = _unescaped_host(name) + ("%" + _unescaped(zone) if zone_mark else "")
    try:
        ipaddress.IPv6Address(address)
    except ValueError as error:
        raise _error(f"invalid host: {address!r} is not an IPv6 address") from error
    return f"[{address}]{port}"


def _unescaped_host(host: str) -> str:
    raw = host.encode("utf-8", "surrogatepass")
    if _BAD_ESCAPE.search(raw) or any(int(code, 16) < 128 and code != b"25" for code in _ESCAPE.findall(raw)):
        raise _error("invalid URL escape in host")
    for byte in _ESCAPE.sub(b"", raw):
        if byte < 128 and byte not in _HOST_BYTES:
            raise _error(f"invalid character {chr(byte)!r} in host name")
    return _decoded(raw)


def _unescaped(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    if _BAD_ESCAPE.search(raw):
        raise _error("invalid URL escape")
    return _decoded(raw)


def _decoded(raw: bytes) -> str:
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), raw).decode("utf-8", "replace")


def _escaped_path(path: str) -> str:
    raw = path.encode("utf-8", "surrogatepass")
    _unescaped(path)
    if _PATH_VALID.match(raw):
        return path
    from urllib.parse import quote_from_bytes  # noqa: PLC0415  only for paths that need escapes

    return quote_from_bytes(_ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), raw), safe=_PATH_SAFE)


def _split_host(url: Url) -> tuple[str, str]:
    host, port = url.host, ""
    name, colon, digits = host.rpartition(":")
    if colon and all(c in "0123456789" for c in digits):
        host, port = name, digits
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, port


def query_of(url: Url) -> CelMap:
    values: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        spend(1)
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        try:
            key, value = _unescaped(key.replace("+", " ")), _unescaped(value.replace("+", " "))
        except EvalError:
            continue
        values.setdefault(key, []).append(value)
    return CelMap.of(values.items())


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
    "url": parse_url,
    "isURL": is_url,
    "getScheme": lambda url: url.scheme,
    "getHost": lambda url: url.host,
    "getHostname": lambda url: _split_host(url)[0],
    "getPort": lambda url: _split_host(url)[1],
    "getEscapedPath": lambda url: url.escaped_path,
    "getQuery": query_of,
}
