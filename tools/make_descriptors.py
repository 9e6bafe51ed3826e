"""Compiles the .proto texts of disc/serving/protocol into the descriptor set that the server reads: `python tools/make_descriptors.py`.

Needs grpcio-tools, which carries protoc; the server itself needs only the result.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

PROTOCOL = Path(__file__).resolve().parents[1] / "disc" / "serving" / "protocol"
TARGET = PROTOCOL / "descriptors.binpb"


def compiled() -> bytes:
    """The serialized FileDescriptorSet of every .proto file, in the order of their names."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "set"
        names = sorted(path.name for path in PROTOCOL.glob("*.proto"))
        code = protoc.main(["protoc", f"-I{PROTOCOL}", f"--descriptor_set_out={target}", *names])
        if code != 0:
            raise SystemExit(code)
        return target.read_bytes()


if __name__ == "__main__":
    content = compiled()
    TARGET.write_bytes(content)
    print(f"{TARGET.name}: {len(content)} bytes", file=sys.stderr)
