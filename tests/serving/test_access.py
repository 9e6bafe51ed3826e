"""TLS, client certificates, bearer tokens: who gets in, over gRPC and HTTP."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from oip_client import Client, failure, serving, write_twice

from disc.errors import ConfigurationError
from disc.serving.grpc.health import HEALTH, REFLECTION
from disc.serving.server import Server
from disc.serving.settings import settings_of

X = np.ones((1, 2), np.float32)


def certificate(folder: Path, name: str, authority: str | None) -> None:
    """A key and a certificate for localhost, signed by `authority` or by itself."""
    key, signed = folder / f"{name}.key", folder / f"{name}.pem"
    base = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    signer = [] if authority is None else ["-CA", str(folder / f"{authority}.pem"), "-CAkey", str(folder / f"{authority}.key")]
    subprocess.run([*base, *names, *signer, "-keyout", str(key), "-out", str(signed)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    for name, authority in (("root", None), ("server", "root"), ("client", "root"), ("stranger", None)):
        certificate(folder, name, authority)
    write_twice(folder / "twice.disc")
    (folder / "users.txt").write_text("user-token\nsecond-user\n")
    (folder / "admins.txt").write_text("admin-token\n")
    return folder


def channel(server: Server, folder: Path, own: str | None = None, authority: str = "root") -> grpc.Channel:
    parts = [(folder / f"{own}.{kind}").read_bytes() if own else None for kind in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials((folder / f"{authority}.pem").read_bytes(), *parts)
    return grpc.secure_channel(f"localhost:{server.port}", credentials)


def https_status(server: Server, folder: Path, own: str | None = None) -> int | str:
    context = ssl.create_default_context(cafile=str(folder / "root.pem"))
    if own:
        context.load_cert_chain(folder / f"{own}.pem", folder / f"{own}.key")
    connection = http.client.HTTPSConnection("localhost", server.http_port or 0, context=context, timeout=10)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status
    except (ssl.SSLError, ConnectionError) as error:
        return type(error).__name__
    finally:
        connection.close()


def infers(client: Client) -> bool:
    return bool(np.array_equal(client.infer("twice", timeout=5, x=X)["y"], 2 * X))


def test_tls(folder: Path) -> None:
    tls = {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key")}
    with serving(folder / "twice.disc", tls=tls) as plain:
        with channel(plain.server, folder) as secure:
            assert infers(Client(plain.server, secure))
        with channel(plain.server, folder, authority="stranger") as distrusting:
            assert failure(lambda: infers(Client(plain.server, distrusting)))[0] == "UNAVAILABLE"
        assert failure(lambda: infers(plain))[0] == "UNAVAILABLE"  # no TLS
        assert https_status(plain.server, folder) == 200


def test_client_certificates(folder: Path) -> None:
    tls = {"certificate": str(folder / "server.pem"), "key": str(folder / "server.key"), "client_ca": str(folder / "root.pem")}
    with serving(folder / "twice.disc", tls=tls) as plain:
        with channel(plain.server, folder, "client") as known:
            assert infers(Client(plain.server, known))
        for own in (None, "stranger"):
            with channel(plain.server, folder, own) as unknown:
                assert failure(lambda unknown=unknown: infers(Client(plain.server, unknown)))[0] == "UNAVAILABLE"
            assert https_status(plain.server, folder, own) != 200
        assert https_status(plain.server, folder, "client") == 200


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Server]:
    access = {"inference_tokens": str(folder / "users.txt"), "admin_tokens": str(folder / "admins.txt")}
    with serving(folder / "twice.disc", admin=True, access=access) as client:
        yield client.server


@pytest.mark.parametrize(
    ("authorization", "inference", "administration"),
    [
        (None, "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer ", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer wrong", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer user-toke", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer user-token2", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Basic user-token", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("user-token", "UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("Bearer user-token", "OK", "PERMISSION_DENIED"),
        ("Bearer second-user", "OK", "PERMISSION_DENIED"),
        ("Bearer admin-token", "OK", "OK"),
    ],
)
def test_tokens(guarded: Server, authorization: str | None, inference: str, administration: str) -> None:
    metadata = () if authorization is None else (("authorization", authorization),)
    client = Client(guarded, metadata=metadata)

    def outcome(call: object) -> str:
        try:
            call()  # pyright: ignore[reportCallIssue]
        except grpc.RpcError as error:
            code = error.code().name  # pyright: ignore[reportAttributeAccessIssue]
            assert "token" in (error.details() or "") and "user-token" not in (error.details() or "")  # pyright: ignore[reportAttributeAccessIssue]
            return code
        return "OK"

    assert outcome(lambda: infers(client)) == inference
    assert outcome(lambda: client.call("ModelMetadata", name="twice")) == inference
    assert outcome(lambda: client.call("RepositoryIndex")) == administration
    assert outcome(lambda: client.call("RepositoryModelLoad", model_name="twice")) == administration
    statuses = {"OK": 200, "UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}
    for method, path, expected in (
        ("GET", "/v2/models/twice", inference),
        ("GET", "/metrics", inference),
        ("GET", "/", inference),
        ("POST", "/v2/repository/index", administration),
        ("POST", "//v2/repository/index", None),
        ("POST", "/v2/%72epository/index", administration),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", guarded.http_port or 0, timeout=10)
        connection.request(method, path, headers={} if authorization is None else {"Authorization": authorization})
        code = connection.getresponse().status
        connection.close()
        assert code == statuses[expected] if expected else code != 200, (path, code)


def test_streams_and_reflection_need_a_token_and_health_does_not(guarded: Server) -> None:
    client = Client(guarded)
    for method in ("/inference.GRPCInferenceService/ModelStreamInfer", f"/{REFLECTION[0]}/ServerReflectionInfo"):
        stream = client.channel.stream_stream(method)
        assert failure(lambda stream=stream: list(stream(iter([b""]))))[0] == "UNAUTHENTICATED"
    assert client.call("Check", service=HEALTH).status == 1


def test_binary_metadata_is_no_token(guarded: Server) -> None:
    client = Client(guarded, metadata=(("authorization-bin", b"Bearer user-token"),))  # pyright: ignore[reportArgumentType]
    assert failure(lambda: infers(client))[0] == "UNAUTHENTICATED"


@pytest.mark.parametrize("content", ["", " \n"])
def test_a_token_file_without_tokens_is_refused(folder: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty.txt").write_text(content)
    with pytest.raises(ConfigurationError, match="holds no token"):
        Server(folder / "twice.disc", settings_of({"access": {"inference_tokens": str(tmp_path / "empty.txt")}}))


@pytest.mark.parametrize("content", ["# tokens of the team\nabc\n", "abc\nuser: secret\n", "abc\n\x00\xff\n", "Bearer abc\n"])
def test_a_line_that_is_no_token_is_refused(folder: Path, tmp_path: Path, content: str) -> None:
    """Its words were tokens: "of" let in whoever guessed a comment."""
    (tmp_path / "tokens.txt").write_bytes(content.encode("latin1"))
    with pytest.raises(ConfigurationError, match=r"line \d of the token file .* is no token: letters, digits and") as caught:
        Server(folder / "twice.disc", settings_of({"access": {"inference_tokens": str(tmp_path / "tokens.txt")}}))
    assert "secret" not in str(caught.value)


def encrypted(folder: Path) -> None:
    command = ["openssl", "pkey", "-in", str(folder / "server.key"), "-aes128", "-passout", "pass:word", "-out", str(folder / "locked.key")]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"certificate": "none.pem"}, "none.pem cannot be read: No such file or directory"),
        ({"certificate": "users.txt"}, "users.txt has no certificate in PEM form"),
        ({"certificate": "server.key"}, "server.key has no certificate in PEM form"),
        ({"key": "server.pem"}, "server.pem has no private key in PEM form"),
        ({"key": "client.key"}, "client.key is not that of the certificate .*server.pem"),
        ({"key": "locked.key"}, "locked.key is encrypted: `openssl pkey -in .* -out FILE` writes one that is not"),
        ({"certificate": "cut.pem"}, "cut.pem with the key .*server.key cannot be used: "),
        ({"client_ca": "users.txt"}, "users.txt has no certificate in PEM form: no certificate or crl found"),
        ({"client_ca": "none.pem"}, "none.pem cannot be read: No such file or directory"),
    ],
)
@pytest.mark.parametrize("http_port", [None, 0])
def test_files_of_tls_that_do_not_do(folder: Path, changes: dict[str, str], words: str, http_port: int | None) -> None:
    """gRPC says no more than that it failed to bind."""
    encrypted(folder)
    (folder / "cut.pem").write_text((folder / "server.pem").read_text()[:200])
    tls = {name: str(folder / file) for name, file in {"certificate": "server.pem", "key": "server.key", **changes}.items()}
    with pytest.raises(ConfigurationError, match=words):
        Server(folder / "twice.disc", replace(settings_of({"tls": tls, "port": 0}), http_port=http_port)).start()


def test_only_administration_is_guarded_where_only_it_has_tokens(folder: Path) -> None:
    with serving(folder / "twice.disc", admin=True, access={"admin_tokens": str(folder / "admins.txt")}) as client:
        assert infers(client)
        assert failure(lambda: client.call("RepositoryIndex"))[0] == "UNAUTHENTICATED"


def test_a_port_that_is_taken(folder: Path) -> None:
    with serving(folder / "twice.disc") as client:
        for key, port in (("port", client.server.port), ("http_port", client.server.http_port)):
            with pytest.raises(ConfigurationError, match="cannot listen on"):
                Server(folder / "twice.disc", settings_of({"port": 0, "http_port": 0, key: port})).start()
