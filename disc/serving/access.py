"""Who may do what: bearer tokens with rights for inference and for administration."""

from __future__ import annotations

import hmac
import re
from pathlib import Path

from disc.errors import ConfigurationError, ForbiddenError, UnauthenticatedError
from disc.serving.settings import Access

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")  # RFC 6750


class Tokens:
    """The tokens of both kinds. An administrator may infer; who may infer may not administer."""

    def __init__(self, access: Access) -> None:
        """Raises ConfigurationError for a file that cannot be read or holds no token."""
        self._inference = _tokens(access.inference_tokens)
        self._admin = _tokens(access.admin_tokens)

    @property
    def checked(self) -> bool:
        return self._inference is not None or self._admin is not None

    def check(self, authorization: str | None, *, admin: bool) -> None:
        """Lets a request pass by its `authorization` header. Raises UnauthenticatedError, ForbiddenError."""
        needed = self._admin if admin else self._inference
        if needed is None:
            return
        token = (authorization or "").removeprefix("Bearer ").encode() if (authorization or "").startswith("Bearer ") else None
        if token is None:
            raise UnauthenticatedError("this request needs a bearer token")
        is_admin, may_infer = _among(token, self._admin), _among(token, self._inference)
        if is_admin or (may_infer and not admin):
            return
        if may_infer:
            raise ForbiddenError("this token does not give the right to administer")
        raise UnauthenticatedError("the bearer token is not valid")


def _among(token: bytes, known: list[bytes] | None) -> bool:
    """Compares with every token, in constant time."""
    found = False
    for each in known or []:
        found |= hmac.compare_digest(token, each)
    return found


def _tokens(path: str | None) -> list[bytes] | None:
    if path is None:
        return None
    try:
        lines = [line.strip() for line in Path(path).read_bytes().splitlines()]
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):  # each word of a comment would open the door
        if line and not _TOKEN.fullmatch(line):
            raise ConfigurationError(f"line {number} of the token file {path} is no token: letters, digits and -._~+/= of one word")
    tokens = [line for line in lines if line]
    if not tokens:
        raise ConfigurationError(f"the token file {path} holds no token")
    return tokens
