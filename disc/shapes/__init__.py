"""Symbolic shapes: dims, what is known of them, and what follows from it (`ShapeEnv`). No MLIR."""

from disc.shapes.algebra import Atom, Dim, FloorDiv, Max, Min, Mod, Monomial, Symbol, Valuation, ceildiv, dim_max, dim_min, parse_dim
from disc.shapes.conditions import ALWAYS, NEVER, Comparison, Condition, all_of, any_of, parse_condition
from disc.shapes.env import ShapeEnv, Truth

__all__ = [
    "ALWAYS",
    "NEVER",
    "Atom",
    "Comparison",
    "Condition",
    "Dim",
    "FloorDiv",
    "Max",
    "Min",
    "Mod",
    "Monomial",
    "ShapeEnv",
    "Symbol",
    "Truth",
    "Valuation",
    "all_of",
    "any_of",
    "ceildiv",
    "dim_max",
    "dim_min",
    "parse_condition",
    "parse_dim",
]
