"""`inference.GRPCInferenceService`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc

from disc.errors import ModelNotFoundError, NotReadyError, RequestError, ServingError, UnsupportedRequestError, WithdrawnError
from disc.serving.access import Tokens
from disc.serving.core import Core
from disc.serving.description import Fields, model_config, model_statistics
from disc.serving.grpc.arrivals import Arrivals
from disc.serving.grpc.handlers import Handlers
from disc.serving.grpc.wire import read_request, stream_answer, wants_typed, write_answer
from disc.serving.messages import INFERENCE, Message, message
from disc.serving.request import EMPTY_FINAL
from disc.serving.shared_memory import Regions
from disc.serving.tracing import Trace
from disc.serving.withdrawal import Withdrawal

NO_LIMIT_S = 1e8  # gRPC gives a huge number for a call without a deadline
_FINAL = "triton_final_response"
_SPAN = {"rpc.system": "grpc", "rpc.service": INFERENCE}


class InferenceService:
    """The methods of the protocol, on a `Core`."""

    def __init__(self, core: Core, regions: Regions, tokens: Tokens, arrivals: Arrivals) -> None:
        self._core = core
        self._regions = regions
        self._limits = core.settings.limits
        handlers = Handlers(INFERENCE, tokens, arrivals)
        handlers.unary("ModelInfer", self._infer)
        handlers.stream("ModelStreamInfer", self._stream)
        plain = {
            "ServerLive": self._live, "ServerReady": self._ready, "ModelReady": self._model_ready, "ServerMetadata": self._metadata,
            "ModelMetadata": self._model_metadata, "ModelConfig": self._config, "ModelStatistics": self._statistics,
        }  # fmt: skip
        for name, method in plain.items():
            handlers.message_method(name, method)
        admin = {"RepositoryIndex": self._index, "RepositoryModelLoad": self._load, "RepositoryModelUnload": self._unload}
        for name, method in admin.items():
            handlers.message_method(name, self._administration(method), admin=True)
        memory = {"Status": self._memory_status, "Register": self._memory_register, "Unregister": self._memory_unregister}
        for name, method in memory.items():
            handlers.message_method(f"SystemSharedMemory{name}", method)
        self.generic = handlers.generic()

    # --- inference ----------------------------------------------------------------------------------------------------------

    def _infer(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        if self._core.spans is None:
            return self._answer(data, context, None)
        with self._core.spans.request(f"{INFERENCE}/ModelInfer", context.invocation_metadata(), _SPAN) as trace:
            return self._answer(data, context, trace)

    def _answer(self, data: bytes, context: grpc.ServicerContext, trace: Trace | None) -> bytes:
        left = context.time_remaining()
        withdrawal = _withdrawal(context)
        request, given = read_request(data, self._regions, self._limits, left if left is not None and left < NO_LIMIT_S else None)
        answer = self._core.infer(request, withdrawal.on_leave, trace)
        return write_answer(answer, wants_typed(given))

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answers in the order of the requests. A request that fails is answered by its error; the stream goes on."""
        withdrawal = _withdrawal(context)  # one for all: gRPC keeps what it is given until the stream ends
        for data in requests:
            name: list[str] = []
            try:
                if self._core.spans is None:
                    answer = self._stream_one(data, withdrawal, name, None)
                else:
                    with self._core.spans.request(f"{INFERENCE}/ModelStreamInfer", context.invocation_metadata(), _SPAN) as trace:
                        answer = self._stream_one(data, withdrawal, name, trace)
            except ServingError as error:
                response = message("inference.ModelStreamInferResponse")(error_message=str(error))
                response.infer_response.id = name[0] if name else ""
                answer = response.SerializeToString()
            finally:
                withdrawal.done()
            del data
            yield answer

    def _stream_one(self, data: bytes, withdrawal: Withdrawal, name: list[str], trace: Trace | None) -> bytes:
        """name: gets the request's, for an answer that is an error."""
        request, given = read_request(data, self._regions, self._limits)
        name.append(request.id)
        final = bool(request.parameters.get(EMPTY_FINAL, False))
        answer = self._core.infer(request, withdrawal.on_leave, trace)
        return stream_answer(write_answer(answer, wants_typed(given), {_FINAL: True} if final else None))

    # --- what there is ------------------------------------------------------------------------------------------------------

    def _live(self, _: Message) -> Fields:
        return {"live": True}

    def _ready(self, _: Message) -> Fields:
        return {"ready": self._core.ready}

    def _model_ready(self, request: Message) -> Fields:
        try:
            self._core.repository.find(request.name, request.version)
        except NotReadyError:
            return {"ready": False}
        return {"ready": self._core.in_service}

    def _metadata(self, _: Message) -> Fields:
        return self._core.metadata()

    def _model_metadata(self, request: Message) -> Fields:
        return self._core.model_metadata(request.name, request.version)

    def _config(self, request: Message) -> Fields:
        return {"config": model_config(self._core.repository.find(request.name, request.version))}

    def _statistics(self, request: Message) -> Fields:
        models = [self._core.repository.find(request.name, request.version)] if request.name else self._core.repository.models()
        return {"model_stats": [model_statistics(model) for model in models]}

    # --- administration -----------------------------------------------------------------------------------------------------

    def _administration(self, method: Callable[[Message], Fields]) -> Callable[[Message], Fields]:
        def checked(request: Message) -> Fields:
            self._core.check_admin()
            if request.repository_name:
                raise ModelNotFoundError("this server has one repository, without a name")
            return method(request)

        return checked

    def _index(self, request: Message) -> Fields:
        entries = self._core.repository.index()
        return {
            "models": [
                {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
                for entry in entries
                if not request.ready or entry.state == "READY"
            ]
        }

    def _load(self, request: Message) -> Fields:
        if request.parameters:
            raise UnsupportedRequestError("a model is loaded as its files and the server's configuration say; parameters are not taken")
        self._core.repository.load(request.model_name)
        return {}

    def _unload(self, request: Message) -> Fields:
        if any(name != "unload_dependents" for name in request.parameters):
            raise RequestError("unloading takes no parameter but 'unload_dependents'")
        self._core.repository.unload(request.model_name)
        return {}

    def _memory_status(self, request: Message) -> Fields:
        regions = self._regions.status(request.name)
        return {"regions": {each.name: _region(each.name, each.key, each.offset, each.size) for each in regions}}

    def _memory_register(self, request: Message) -> Fields:
        self._regions.register(request.name, request.key, request.offset, request.byte_size)
        return {}

    def _memory_unregister(self, request: Message) -> Fields:
        self._regions.unregister(request.name)
        return {}


def _withdrawal(context: grpc.ServicerContext) -> Withdrawal:
    """What ends the work for this call, whenever its client goes. Raises WithdrawnError when it has gone."""
    withdrawal = Withdrawal()
    if not context.add_callback(withdrawal.leave):
        raise WithdrawnError("the request was cancelled")
    return withdrawal


def _region(name: str, key: str, offset: int, size: int) -> Message:
    kind = message("inference.SystemSharedMemoryStatusResponse.RegionStatus")
    return kind(name=name, key=key, offset=offset, byte_size=size)
