"""The protobuf messages of the server's protocols, in a descriptor pool of their own.

The pool is private because client libraries (tritonclient, kserve) register the same message names in the default pool: two files that
define `inference.ModelInferRequest` cannot live in one pool, and so could not live in one process.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError

__all__ = ["INFERENCE", "POOL", "DecodeError", "Message", "MessageClass", "file_of", "message", "method_types", "service"]

INFERENCE = "inference.GRPCInferenceService"
Message = Any  # the classes are made at run time from descriptors, so a type checker cannot know their fields
MessageClass = Any


def _pool() -> descriptor_pool.DescriptorPool:
    content = files("disc.serving").joinpath("protocol/descriptors.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    return pool


POOL = _pool()


@cache
def message(name: str) -> MessageClass:
    """The class of a message by its full name, "inference.ModelInferRequest"."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def service(name: str) -> ServiceDescriptor:
    return POOL.FindServiceByName(name)


def method_types(service_name: str, method: str) -> tuple[MessageClass, MessageClass]:
    """The request and response classes of one RPC."""
    found = service(service_name).methods_by_name[method]
    return message(found.input_type.full_name), message(found.output_type.full_name)


def file_of(symbol: str) -> FileDescriptor:
    """The file that defines a message, enum, service or method. Raises KeyError."""
    return POOL.FindFileContainingSymbol(symbol)
