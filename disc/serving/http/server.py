"""The protocol's REST form over HTTP, the status page and the metrics. aiohttp, with a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.resources import files
from typing import cast

from aiohttp import web

from disc.errors import NotReadyError, ServingError, WithdrawnError
from disc.serving.access import Tokens
from disc.serving.codes import FAULT, code_of
from disc.serving.core import Core
from disc.serving.description import model_config, model_statistics
from disc.serving.holding import Holding
from disc.serving.http.connections import Connection, Connections, read_body
from disc.serving.http.json_form import HEADER_LENGTH, read_request, write_answer
from disc.serving.http.openapi import description
from disc.serving.http.status import status
from disc.serving.listening import cannot_listen, plain_host
from disc.serving.logs import log, log_seldom
from disc.serving.metrics import metrics_text
from disc.serving.settings import Tls
from disc.serving.shared_memory import Regions
from disc.serving.tls import server_context
from disc.serving.tracing import Trace
from disc.serving.withdrawal import Withdrawal

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PAGE = files("disc.serving.http").joinpath("status.html").read_text()
_SPAN = {"http.request.method": "POST", "http.route": "/v2/models/{model}/infer"}
# The page runs its own script, holds its own icon and asks its own server, nothing else.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'"
)


class HttpServer:
    """Answers as long as its thread runs."""

    def __init__(self, core: Core, regions: Regions, tokens: Tokens, holding: Holding, most_connections: int) -> None:
        self._core = core
        self._regions = regions
        self._tokens = tokens
        self._holding = holding
        self._connections = Connections(most_connections, core.settings.limits)
        self._pool = ThreadPoolExecutor(core.settings.limits.requests, thread_name_prefix="disc-http")
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_loop)
        self._thread = threading.Thread(target=self._loop.run_forever, name="disc-http-loop", daemon=True)
        self._runner: web.AppRunner | None = None
        self._metrics_runner: web.AppRunner | None = None
        self._listeners: list[asyncio.Server] = []
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        self.metrics_port: int | None = None

    def start(self, host: str, port: int, tls: Tls | None) -> None:
        """Binds and answers. Raises ConfigurationError."""
        context = server_context(tls) if tls is not None else None
        self._thread.start()
        self._wait(self._start(host, port, context))

    async def _start(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        metrics = self._core.settings.metrics.port
        routes = self._routes() + (self._metrics_routes() if metrics is None else [])
        self._runner, self.port = await self._listen(routes, host, port, "http_port", context)
        if metrics is not None:
            listening = self._listen(self._metrics_routes(), host, metrics, "metrics.port", context)
            self._metrics_runner, self.metrics_port = await listening
        self._watch = self._loop.create_task(self._connections.watch())

    async def _listen(
        self, routes: list[web.RouteDef], host: str, port: int, setting: str, context: ssl.SSLContext | None
    ) -> tuple[web.AppRunner, int]:
        """Answers on one port, of a setting; returns which. Raises ConfigurationError."""
        limits, loop = self._core.settings.limits, self._loop
        application = web.Application(client_max_size=limits.message_bytes, middlewares=[self._guarded])
        application.add_routes(routes)
        # A handler whose client has gone is cancelled, and withdraws its request.
        runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        server = runner.server
        assert server is not None
        patience = limits.arrival_s if context is not None else None
        try:
            listener = await loop.create_server(
                lambda: Connection(server, self._connections, loop),
                plain_host(host), port, ssl=context, backlog=128, ssl_handshake_timeout=patience,
            )  # fmt: skip
        except OSError as error:
            raise cannot_listen(host, port, setting, error) from error
        self._listeners.append(listener)
        return runner, listener.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Closes the port and the connections."""
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown()

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._watch is not None:
            self._watch.cancel()
        for runner in (self._runner, self._metrics_runner):
            if runner is not None:
                await runner.cleanup()

    def _wait(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        future: Future[None] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        future.result()

    def _routes(self) -> list[web.RouteDef]:
        routes = [
            web.get("/v2", self._metadata), web.get("/v2/health/live", self._live), web.get("/v2/health/ready", self._ready),
            web.get("/", self._page), web.get("/status.json", self._status), web.get("/openapi.json", self._openapi),
            web.get("/v2/models/stats", self._all_statistics),
            web.post("/v2/repository/index", self._index), web.post("/v2/repository/models/{model}/load", self._load),
            web.post("/v2/repository/models/{model}/unload", self._unload),
        ]  # fmt: skip
        for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                web.get(prefix, self._model_metadata), web.get(f"{prefix}/ready", self._model_ready),
                web.get(f"{prefix}/config", self._config), web.get(f"{prefix}/stats", self._statistics),
                web.post(f"{prefix}/infer", self._infer),
            ]  # fmt: skip
        return routes

    def _metrics_routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._metrics)]

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Access, and errors as status codes."""
        connection = cast("Connection", request.protocol)
        connection.begin()
        try:
            if not request.path.startswith("/v2/health/"):
                self._tokens.check(request.headers.get("Authorization"), admin=request.path.startswith("/v2/repository/"))
            return await handler(request)
        except ServingError as error:
            return _failed(code_of(error)[1], str(error))
        except web.HTTPException as error:
            answer = _failed(error.status, _refusal(request, error))
            if error.status in (408, 413):  # what is left of the body is not waited for
                answer.force_close()
            return answer
        except Exception as error:
            log("fault", method=request.path, error=f"{type(error).__name__}: {error}")
            return _failed(500, FAULT)
        finally:
            connection.end()

    # --- inference ----------------------------------------------------------------------------------------------------------

    async def _infer(self, request: web.Request) -> web.Response:
        limits = self._core.settings.limits
        body = await read_body(request, limits, self._holding)
        names = _names(request)
        withdrawal = Withdrawal()

        def answer(trace: Trace | None) -> tuple[bytes, int | None]:
            if withdrawal.gone:
                raise WithdrawnError("the request was cancelled")
            asked, wanted = read_request(*names, body.data, request.headers.get(HEADER_LENGTH), self._regions, limits)
            return write_answer(self._core.infer(asked, withdrawal.on_leave, trace), wanted)

        def run() -> tuple[bytes, int | None]:
            if self._core.spans is None:
                return answer(None)
            with self._core.spans.request("POST /v2/models/{model}/infer", request.headers.items(), _SPAN) as trace:
                return answer(trace)

        try:
            content, length = await self._in_thread(run)
        except asyncio.CancelledError:
            withdrawal.leave()
            raise
        if length is None:
            return web.Response(body=content, content_type="application/json")
        return web.Response(body=content, content_type="application/octet-stream", headers={HEADER_LENGTH: str(length)})

    async def _in_thread(self, work: Callable[[], tuple[bytes, int | None]]) -> tuple[bytes, int | None]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    # --- what there is ------------------------------------------------------------------------------------------------------

    async def _live(self, _: web.Request) -> web.Response:
        return _json({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        return _json({"ready": self._core.ready}, 200 if self._core.ready else 503)

    async def _model_ready(self, request: web.Request) -> web.Response:
        model = self._core.repository.find(*_names(request))
        ready = self._core.in_service
        return _json({"name": model.name, "ready": ready}, 200 if ready else 503)

    async def _metadata(self, _: web.Request) -> web.Response:
        return _json(self._core.metadata())

    async def _model_metadata(self, request: web.Request) -> web.Response:
        return _json(self._core.model_metadata(*_names(request)))

    async def _config(self, request: web.Request) -> web.Response:
        return _json(model_config(self._core.repository.find(*_names(request))))

    async def _statistics(self, request: web.Request) -> web.Response:
        return _json({"model_stats": [model_statistics(self._core.repository.find(*_names(request)))]})

    async def _all_statistics(self, _: web.Request) -> web.Response:
        return _json({"model_stats": [model_statistics(model) for model in self._core.repository.models()]})

    async def _metrics(self, request: web.Request) -> web.Response:
        text, kind = metrics_text(self._core, request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": kind})

    async def _openapi(self, _: web.Request) -> web.Response:
        return _json(description())

    async def _status(self, _: web.Request) -> web.Response:
        return _json(status(self._core))

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html", headers={"Content-Security-Policy": PAGE_POLICY})

    # --- administration -----------------------------------------------------------------------------------------------------

    async def _index(self, _: web.Request) -> web.Response:
        self._core.check_admin()
        return _json([vars(entry) for entry in self._core.repository.index()])

    async def _load(self, request: web.Request) -> web.Response:
        return await self._change(request, self._core.repository.load)

    async def _unload(self, request: web.Request) -> web.Response:
        return await self._change(request, self._core.repository.unload)

    async def _change(self, request: web.Request, change: Callable[[str], None]) -> web.Response:
        self._core.check_admin()
        if not self._core.in_service:
            raise NotReadyError("the server is shutting down")
        await asyncio.get_running_loop().run_in_executor(self._pool, change, request.match_info["model"])
        return _json({})


def _names(request: web.Request) -> tuple[str, str]:
    return request.match_info["model"], request.match_info.get("version", "")


def _json(value: object, code: int = 200) -> web.Response:
    return web.Response(text=json.dumps(value, default=_plain), content_type="application/json", status=code)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _refusal(request: web.Request, error: web.HTTPException) -> str:
    """Where nothing answers at a path, or not with this method: what would."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{request.method} is not for {request.path[:100]}, which takes {', '.join(sorted(error.allowed_methods))}"
    if error.status == 404:
        return f"there is nothing at {request.path[:100]}; GET /openapi.json lists the paths"
    return error.reason


def _failed(code: int, text: str) -> web.Response:
    return _json({"error": text}, code)


def _log_loop(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """What asyncio would print: connections that break off, files that run out."""
    log_seldom("http", message=str(context.get("message")), error=repr(context.get("exception")))
