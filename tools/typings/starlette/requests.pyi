from collections.abc import Mapping

class URL:
    path: str

class Request:
    method: str
    url: URL
    headers: Mapping[str, str]
    async def body(self) -> bytes: ...
