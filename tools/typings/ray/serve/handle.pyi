from typing import Any

class DeploymentHandle:
    def __getattr__(self, method: str) -> Any: ...
