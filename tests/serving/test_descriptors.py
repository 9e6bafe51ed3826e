"""The descriptor set in the package is what its .proto texts say."""

from tools.make_descriptors import TARGET, compiled


def test_the_descriptor_set_is_current() -> None:
    assert TARGET.read_bytes() == compiled(), "run: python tools/make_descriptors.py"
