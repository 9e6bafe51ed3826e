from typing import Any

from ray.serve import handle as handle

class Application: ...

class Deployment:
    def options(self, **options: Any) -> Deployment: ...
    def bind(self, *arguments: Any) -> Application: ...

def deployment(kind: type) -> Deployment: ...
def start(*, proxy_location: str = ..., http_options: dict[str, Any] = ..., grpc_options: dict[str, Any] = ...) -> None: ...
def run(target: Application, *, name: str = ..., route_prefix: str | None = ...) -> handle.DeploymentHandle: ...

class DeploymentStatus:
    message: str

class ApplicationStatus:
    deployments: dict[str, DeploymentStatus]

class Status:
    applications: dict[str, ApplicationStatus]

def status() -> Status: ...
