"""TLS for gRPC servers."""

from __future__ import annotations

from pathlib import Path

import grpc

from disc.errors import ConfigurationError
from disc.serving.settings import Tls


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """Raises ConfigurationError for a file that cannot be read."""
    key, certificate = (_pem(path) for path in (tls.key, tls.certificate))
    authority = _pem(tls.client_ca) if tls.client_ca is not None else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
