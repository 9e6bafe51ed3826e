from collections.abc import Mapping

SERVICE_NAME: str

class Resource:
    attributes: Mapping[str, object]
    def __init__(self, attributes: Mapping[str, str]) -> None: ...
    @staticmethod
    def create() -> Resource: ...
    def merge(self, other: Resource) -> Resource: ...
