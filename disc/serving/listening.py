"""Addresses that a server listens on: how they are written, and why one of them cannot be had."""

from __future__ import annotations

import socket

from disc.errors import ConfigurationError
from disc.serving.settings import ServerSettings


def plain_host(host: str) -> str:
    """Without the brackets in which URLs hold an address of IPv6."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def address(host: str, port: int) -> str:
    """ "127.0.0.1:8001", "[::1]:8001"."""
    plain = plain_host(host)
    return f"[{plain}]:{port}" if ":" in plain else f"{plain}:{port}"


def check_addresses(settings: ServerSettings) -> None:
    """Raises ConfigurationError, before models are loaded, for what no system would listen on."""
    if not plain_host(settings.host):
        raise ConfigurationError("host is empty: give an address, such as 127.0.0.1, or 0.0.0.0 for every interface")
    ports = {"port": settings.port, "http_port": settings.http_port, "metrics.port": settings.metrics.port}
    for number in sorted({each for each in ports.values() if each}):  # not 0, for which the system chooses one after another
        names = [name for name, port in ports.items() if port == number]
        if len(names) > 1:
            raise ConfigurationError(f"{', '.join(names)} are all {number}: each needs a port of its own")


def cannot_listen(host: str, port: int, setting: str, error: Exception) -> ConfigurationError:
    """setting: which names the port, "http_port". error: of a library, which says it only when the system does not say more."""
    return ConfigurationError(f"cannot listen on {address(host, port)} ({setting}): {_reason(plain_host(host), port) or error}")


def _reason(host: str, port: int) -> str | None:
    """What the system says to the address, "Address already in use"; None: nothing."""
    try:
        for family, kind, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection of a server that ended is no obstacle
                probe.bind(place)
    except OSError as error:
        return error.strerror
    return None
