"""The protobuf messages of the server's protocols, in a descriptor pool of their own.

Every class of the pool, nested ones too, is made here and held. protobuf holds a class that was never used (that of a field, say) weakly:
the garbage collector clears it when no instance is left, and a thread that reads such a field meanwhile ends the process with SIGSEGV.

The pool is private because client libraries (tritonclient, kserve) register the same message names in the default pool: two files that
define `inference.ModelInferRequest` cannot live in one pool, and so could not live in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError

__all__ = ["INFERENCE", "POOL", "DecodeError", "Message", "MessageClass", "file_of", "message", "method_types", "service"]

INFERENCE = "inference.GRPCInferenceService"
Message = Any  # the classes are made at run time from descriptors, so a type checker cannot know their fields
MessageClass = Any


def _files() -> descriptor_pb2.FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(files("disc.serving").joinpath("protocol/descriptors.binpb").read_bytes())


def _with_nested(described: Descriptor) -> Iterator[Descriptor]:
    yield described
    for nested in described.nested_types:
        yield from _with_nested(nested)


def _classes(names: list[str]) -> dict[str, MessageClass]:
    """The class of each message of these files, by its full name."""
    tops = [top for name in names for top in POOL.FindFileByName(name).message_types_by_name.values()]
    found = [each for top in tops for each in _with_nested(top)]
    return {each.full_name: message_factory.GetMessageClass(each) for each in found}


POOL = descriptor_pool.DescriptorPool()
for _file in _files().file:
    POOL.Add(_file)
_CLASSES = _classes([file.name for file in _files().file])


def message(name: str) -> MessageClass:
    """The class of a message by its full name, "inference.ModelInferRequest"."""
    return _CLASSES[name]


def service(name: str) -> ServiceDescriptor:
    return POOL.FindServiceByName(name)


def method_types(service_name: str, method: str) -> tuple[MessageClass, MessageClass]:
    """The request and response classes of one RPC."""
    found = service(service_name).methods_by_name[method]
    return message(found.input_type.full_name), message(found.output_type.full_name)


def file_of(symbol: str) -> FileDescriptor:
    """The file that defines a message, enum, service or method. Raises KeyError."""
    return POOL.FindFileContainingSymbol(symbol)
