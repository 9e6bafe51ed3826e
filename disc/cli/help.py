"""The help of commands: examples to copy, and options without the names of Python's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

# By command, as typed behind `disc`. tests/e2e/test_cli.py reads each as the command line would.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "compile": (
        "disc compile encoder:block -o block.disc",
        "disc compile model.onnx --target x86-64-v3,x86-64-v4",
        "disc compile hf:my-bert --task text-classification --packed",
        "disc compile encoder:block --static x=2 --amp bf16",
    ),
    "compile-server": ("disc compile-server --port 8010 --jobs 2 --tokens tokens.txt",),
    "tune": ("disc tune --threads 1 --minutes 10",),
    "run": (
        "disc run block.disc --random x=4x33x256,mask=4x33",
        "disc run block.disc --input x=x.npy --input mask=mask.npy --output y.npy",
    ),
    "bench": (
        "disc bench block.disc --shape x=1x7x256,mask=1x7 --shape x=8x128x256,mask=8x128",
        "disc bench encoder:block --against eager,ort --shape x=1x7x256,mask=1x7 --callers 4 --plot block.png",
    ),
    "inspect": ("disc inspect block.disc", "disc inspect block.disc --export block.json"),
    "verify": ("disc verify block.disc", "disc verify block.disc --key public.pem"),
    "sign": ("disc sign block.disc --key private.pem",),
    "explain": (
        "disc explain block.disc",
        "disc explain block.disc --random x=4x33x256,mask=4x33 --html block.html",
        "disc explain block.disc --random x=4x33x256,mask=4x33 --sweep x.1=1:128",
        "disc explain block.disc --random x=4x33x256,mask=4x33 --trace block.json",
    ),
    "serve": (
        "disc serve block.disc",
        "disc serve models/ --config serve.toml --host 0.0.0.0 --metrics-port 8002",
        "disc serve --schema",
    ),
    "doctor": ("disc doctor --json",),
    "cache ls": ("disc cache ls",),
    "cache verify": ("disc cache verify",),
    "cache clear": ("disc cache clear",),
    "debug opt": (
        "disc debug opt model.mlir --passes=name-dims,resolve-broadcasts",
        "disc debug opt fused.mlir --emit x86-64-v4",
    ),
    "debug bisect": ("disc debug bisect encoder:block --sizes 2x17x256,2x17",),
    "debug reduce": (
        "disc debug reduce disc-report-1a2b3c.zip",
        "disc debug reduce model.mlir --check 'disc debug opt {} --passes=name-dims' --match 'unknown dim'",
    ),
    "debug replay": ("disc debug replay disc-report-1a2b3c.zip",),
    "ray serve": ("disc ray serve models/ --address auto --replicas 2",),
    "ray compile": ("disc ray compile encoder:block other:model --output artifacts --address auto",),
    "ray tune": ("disc ray tune --address auto",),
}


def examples(command: str) -> str:
    """The end of a command's help. Raises KeyError for a command without examples."""
    return "\n".join(["Examples:", *(f"  {line}" for line in EXAMPLES[command])])


class Command(TyperCommand):
    """A command whose help names no type where an option takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plainly(super().get_params(ctx))


class Group(TyperGroup):
    """The same for a group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plainly(super().get_params(ctx))


def _plainly(params: Iterable[Any]) -> list[Any]:
    found = list(params)
    for each in found:
        if isinstance(each, TyperOption) and each.metavar is None:
            kind = each.bare_type().removeprefix("list[").removesuffix("]").lower()
            each.metavar = "" if each.is_flag else f"<{kind}>{'...' if each.multiple else ''}"
    return found
