from collections.abc import Mapping
from enum import Enum

class Context: ...

class SpanKind(Enum):
    SERVER = 1
    INTERNAL = 2

class StatusCode(Enum):
    ERROR = 2

class Status:
    def __init__(self, status_code: StatusCode, description: str) -> None: ...

class Span:
    def set_status(self, status: Status) -> None: ...
    def set_attribute(self, key: str, value: str | int) -> None: ...
    def is_recording(self) -> bool: ...
    def end(self, end_time: int) -> None: ...

class Tracer:
    def start_span(
        self,
        name: str,
        context: Context,
        kind: SpanKind = ...,
        attributes: Mapping[str, str | int] | None = ...,
        *,
        start_time: int,
    ) -> Span: ...

def set_span_in_context(span: Span) -> Context: ...
