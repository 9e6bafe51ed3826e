from collections.abc import Mapping

class Response:
    def __init__(self, content: bytes, status_code: int = ..., headers: Mapping[str, str] | None = ...) -> None: ...
