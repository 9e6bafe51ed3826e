"""Fourier transforms, as ops that functions of the runtime compute (`Kind.LIBRARY`)."""

from __future__ import annotations

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.overrides import Fault, Override
from disc.frontend.rules.sorting import library, sized_library


def _source(call: Call) -> Tensor:
    x = call.tensor("x")
    if x.dtype not in (torch.float32, torch.float64):
        raise RuleError(f"Fourier transforms of {x.dtype}")
    return x


def complex_to_complex(e: OpBuilder, call: Call) -> Tensor:
    x = _source(call)
    numbers = {"dim": call.integer("dim"), "inverse": call.flag("inverse"), "norm": call.integer("norm")}
    return library("disc.fft", [x], [(x.shape, x.dtype)], **numbers)[0]


def real_to_complex(e: OpBuilder, call: Call) -> Tensor:
    x = _source(call)
    return sized_library(e, "disc.dynamic_rfft", [x], [(call.shape, x.dtype)], dim=call.integer("dim"), norm=call.integer("norm"))[0]


def complex_to_real(e: OpBuilder, call: Call) -> Tensor:
    x = _source(call)
    return sized_library(e, "disc.dynamic_irfft", [x], [(call.shape, x.dtype)], dim=call.integer("dim"), norm=call.integer("norm"))[0]


WHY = "an op of this compiler (frontend/fourier.py)"
OF_PACKAGES: dict[str, Override] = {
    "disc.fft.default": Override(complex_to_complex, Fault.REFUSED, WHY),
    "disc.rfft.default": Override(real_to_complex, Fault.REFUSED, WHY),
    "disc.irfft.default": Override(complex_to_real, Fault.REFUSED, WHY),
}
