"""Errors → status codes, for gRPC and HTTP."""

from __future__ import annotations

from disc.errors import (
    DeadlineError,
    ForbiddenError,
    JobLimitError,
    JobNotFoundError,
    JobRefusedError,
    ModelNotFoundError,
    NotReadyError,
    OverloadedError,
    RequestError,
    ServingError,
    UnauthenticatedError,
    UnsupportedRequestError,
    WithdrawnError,
)

INTERNAL = ("INTERNAL", 500)
FAULT = "the server failed; its log has the reason"  # the message to a client for an error that is not about its request
# Load is RESOURCE_EXHAUSTED, not UNAVAILABLE: the latter pages operators and invites retries.
CODES: dict[type[ServingError], tuple[str, int]] = {
    RequestError: ("INVALID_ARGUMENT", 400),
    ModelNotFoundError: ("NOT_FOUND", 404),
    NotReadyError: ("UNAVAILABLE", 503),
    OverloadedError: ("RESOURCE_EXHAUSTED", 429),
    DeadlineError: ("DEADLINE_EXCEEDED", 504),
    WithdrawnError: ("CANCELLED", 499),
    JobNotFoundError: ("NOT_FOUND", 404),
    JobRefusedError: ("INVALID_ARGUMENT", 400),
    JobLimitError: ("RESOURCE_EXHAUSTED", 429),
    UnsupportedRequestError: ("UNIMPLEMENTED", 501),
    UnauthenticatedError: ("UNAUTHENTICATED", 401),
    ForbiddenError: ("PERMISSION_DENIED", 403),
}


def code_of(error: ServingError) -> tuple[str, int]:
    """The names of the gRPC status and the HTTP status."""
    return CODES.get(type(error), INTERNAL)
