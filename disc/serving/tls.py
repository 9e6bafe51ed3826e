"""TLS of servers, for gRPC and HTTP, from the same files."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc

from disc.errors import ConfigurationError
from disc.serving.settings import Tls


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """For gRPC, which would not say what is wrong with a file. Raises ConfigurationError as `server_context`."""
    server_context(tls)
    key, certificate = _pem(tls.key), _pem(tls.certificate)
    authority = _pem(tls.client_ca) if tls.client_ca is not None else None
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=authority is not None)


def server_context(tls: Tls) -> ssl.SSLContext:
    """Raises ConfigurationError for a file that cannot be read or is of another kind, and a key that is not the certificate's."""
    if b"CERTIFICATE-----" not in _pem(tls.certificate):
        raise ConfigurationError(f"{tls.certificate} has no certificate in PEM form")
    key = _pem(tls.key)
    if b"PRIVATE KEY-----" not in key:
        raise ConfigurationError(f"{tls.key} has no private key in PEM form")
    if b"ENCRYPTED" in key:  # nobody is there to be asked for its passphrase
        raise ConfigurationError(f"the private key {tls.key} is encrypted: `openssl pkey -in {tls.key} -out FILE` writes one that is not")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"the private key {tls.key} is not that of the certificate {tls.certificate}") from error
        raise ConfigurationError(f"the certificate {tls.certificate} with the key {tls.key} cannot be used: {_reason(error)}") from error
    if tls.client_ca is not None:
        _pem(tls.client_ca)
        try:
            context.load_verify_locations(tls.client_ca)
        except ssl.SSLError as error:
            raise ConfigurationError(f"{tls.client_ca} has no certificate in PEM form: {_reason(error)}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _reason(error: ssl.SSLError) -> str:
    """ "no certificate or crl found"."""
    return error.reason.replace("_", " ").lower() if error.reason else str(error)


def _pem(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
