"""disc models on Ray Serve: replicas on many machines behind one address, autoscaled, updated without losing a request.

    import ray
    from disc.serving.ray import deploy, start

    ray.init("auto")
    start(grpc_port=9000, http_port=8000)
    deploy("/mnt/models", autoscaling={"min_replicas": 1, "max_replicas": 8})

Clients of the Open Inference Protocol then send their requests to port 9000 of any node, as to `disc serve`. With more than one application
on the cluster, Ray requires the metadata `application` (the `name` given to `deploy`) with each request. The HTTP form is below `route`.

Ray itself runs any code that is sent to its ports: keep these within the cluster. Its gRPC proxy listens on every interface.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from disc.errors import DiscError
from disc.serving.grpc.health import HEALTH
from disc.serving.logs import log_to_stderr
from disc.serving.messages import INFERENCE
from disc.serving.ray.replica import CHECK, STREAM, UNARY, Replica, check_settings, revision_of
from disc.serving.settings import ServerSettings

DRAIN_S = 30.0
LOOK_S = 2.0  # how often a replica that is to stop looks whether its requests are answered


class Deployed(Replica):
    """A replica within Ray."""

    def __init__(self, path: str, settings: ServerSettings, revision: str) -> None:
        log_to_stderr()
        super().__init__(path, settings, revision)

    async def __call__(self, request: Request) -> Response:
        """The REST form."""
        answer = await self.rest(request.method, request.url.path, dict(request.headers), await request.body())
        return Response(answer.body, answer.status, headers=answer.headers)

    async def served(self) -> dict[str, object]:
        """The revision and models of this replica, its node, and how many requests it has answered. For operators."""
        return {
            "revision": self.revision,
            "models": self.models,
            "node": ray.get_runtime_context().get_node_id(),
            "answered": self.answered,
        }


def add_inference(servicer: Any, server: grpc.Server) -> None:
    """Adds `inference.GRPCInferenceService` to Ray's proxy (one of its `grpc_servicer_functions`)."""
    handlers = {name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name)) for name in UNARY}
    handlers[STREAM] = grpc.stream_stream_rpc_method_handler(getattr(servicer, STREAM))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(INFERENCE, handlers),))


def add_health(servicer: Any, server: grpc.Server) -> None:
    """Adds `Check` of `grpc.health.v1.Health`, answered by a replica: SERVING as long as there is one."""
    handlers = {CHECK: grpc.unary_unary_rpc_method_handler(getattr(servicer, CHECK))}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH, handlers),))


def start(*, grpc_port: int = 9000, http_port: int = 8000, host: str = "127.0.0.1", proxies: str = "EveryNode") -> None:
    """Starts Ray Serve on the cluster that this process is connected to.

    host: where the HTTP proxies listen. proxies: "EveryNode", or "HeadOnly" for one address. Without effect where Serve runs already: its
    ports cannot change.
    """
    functions = [f"{__name__}.{each.__name__}" for each in (add_inference, add_health)]
    serve.start(
        proxy_location=proxies,
        http_options={"host": host, "port": http_port},
        # Reflection by Ray could name the services, but not describe their messages, which are in a pool of their own.
        grpc_options={"port": grpc_port, "grpc_servicer_functions": functions, "enable_reflection": False},
    )


def application(
    path: str | os.PathLike[str],
    settings: ServerSettings | None = None,
    *,
    replicas: int = 1,
    autoscaling: Mapping[str, object] | None = None,
    cpus: float = 1.0,
    memory_bytes: float | None = None,
) -> serve.Application:
    """The Ray Serve application for an artifact, or a folder of `name/version/model.disc`.

    path: the same on every node (shared storage, or part of the image). settings: as of `disc serve`, but TLS, administration and shared
    memory, which a proxy before many replicas rules out. replicas: how many, unless autoscaling (Ray's AutoscalingConfig by its keys)
    says from how many to how many. cpus, memory_bytes: what Ray sets aside per replica; a replica computes on `cpus` threads, one at
    least, unless the settings say otherwise.

    Raises ConfigurationError.
    """
    settings = settings or ServerSettings()
    check_settings(settings)
    source = Path(path).resolve()
    batch = settings.defaults.max_batch * settings.defaults.concurrency
    scale: dict[str, object] = {"num_replicas": replicas}
    if autoscaling is not None:
        # A replica is busy when one batch runs and the next one is full.
        scale = {"autoscaling_config": {"target_ongoing_requests": float(batch), **autoscaling}}
    deployment = serve.deployment(Deployed).options(
        max_ongoing_requests=min(2 * batch, settings.limits.requests),
        ray_actor_options={"num_cpus": cpus, "memory": memory_bytes},
        graceful_shutdown_timeout_s=DRAIN_S,
        graceful_shutdown_wait_loop_s=LOOK_S,
        **scale,
    )
    return deployment.bind(str(source), settings, revision_of(source))


def deploy(
    path: str | os.PathLike[str], settings: ServerSettings | None = None, *, name: str = "disc", route: str | None = "/", **scale: Any
) -> DeploymentHandle:
    """Runs `application(path, settings, **scale)` as `name`; returns when its replicas answer.

    Where `name` runs already and the models or the settings have changed, its replicas are replaced one after another, each when it has
    answered what it had accepted. Raises DiscError when the new ones do not start, as with a damaged artifact: those from before stay.
    """
    try:
        return serve.run(application(path, settings, **scale), name=name, route_prefix=route)
    except RuntimeError as error:
        found = serve.status().applications.get(name)
        reasons = [line for each in found.deployments.values() for line in each.message.splitlines()] if found is not None else []
        said = next((line.strip() for line in reversed(reasons) if "Error" in line), str(error))
        raise DiscError(f"'{name}' was not deployed, what it was before stays: {said}") from error
