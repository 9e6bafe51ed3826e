"""The cases of every suite. Nothing is downloaded: models are made from their configurations with seeded weights."""

from __future__ import annotations

from bench.cases.breadth import BLOCK_CASES, LIBRARY_CASES, RECURRENT_CASES
from bench.cases.case import Case, Inputs, Shape, build, parse_shapes, shape_name
from bench.cases.conv import CONV_CASES
from bench.cases.dynamic import DYNAMIC_CASES, Instances, TrainedInstances, stacked
from bench.cases.families import FAMILY_CASES
from bench.cases.fusion import FUSION_CASES, MOST_INPUTS
from bench.cases.gemm import GEMM_CASES
from bench.cases.lazy import LAZY_CASES
from bench.cases.memory import MEMORY_CASES
from bench.cases.models import ADD_ONE, MODEL_CASES, SMALL_BERT, ImageModel, TextModel
from bench.cases.training import TRAINING_CASES, TrainingStep

SUITE_CASES: dict[str, tuple[Case, ...]] = {
    "models": MODEL_CASES,
    "gemm": GEMM_CASES,
    "memory": MEMORY_CASES,
    "conv": CONV_CASES,
    "families": FAMILY_CASES,
    "recurrent": RECURRENT_CASES,
    "library": LIBRARY_CASES,
    "blocks": BLOCK_CASES,
    "dynamic": DYNAMIC_CASES,
    "training": TRAINING_CASES,
    "lazy": LAZY_CASES,
    "fusion": (*FUSION_CASES, *(case for case in TRAINING_CASES if case.name == "training")),
    "forms": MODEL_CASES[:1],
    "overhead": (ADD_ONE,),
    "compile": MODEL_CASES[:1],
    "stream": (SMALL_BERT,),
}
CASES: dict[str, Case] = {case.name: case for cases in SUITE_CASES.values() for case in cases}

__all__ = [
    "CASES",
    "MOST_INPUTS",
    "SUITE_CASES",
    "Case",
    "ImageModel",
    "Inputs",
    "Instances",
    "Shape",
    "TextModel",
    "TrainedInstances",
    "TrainingStep",
    "build",
    "parse_shapes",
    "shape_name",
    "stacked",
]
