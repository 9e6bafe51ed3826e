"""Files of models that are several programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

from disc.artifact import file as artifact
from disc.artifact.manifest import Manifest
from disc.errors import ArtifactError
from disc.ral.block_programs import BlockPrograms
from disc.ral.gpu_programs import from_sections
from disc.ral.skeletal import SkeletalProgram
from disc.ral.structured import StructuredProgram


def load_blocks(path: str | os.PathLike[str], threads: int, isa: str | None, digest: bytes | None) -> tuple[BlockPrograms, Manifest]:
    """The program of a file, and its manifest with the kernels of all blocks. digest: of the header, where it must be a certain one.

    Raises ArtifactError, TargetError.
    """
    view = artifact.read_whole(path, digest)
    try:
        manifest = artifact.parse_manifest(artifact.text_sections(view))
        blocks = artifact.block_contents(view)
        if len(blocks) != block_count(manifest) or not blocks:
            raise ArtifactError(f"it has {len(blocks)} programs for {block_count(manifest)} blocks")
    except ArtifactError as error:
        raise ArtifactError(f"'{artifact.shown_path(path)}': {error}") from None
    programs = [
        from_sections(each.manifest, each.code, [array for _, _, array in each.weights].__getitem__, threads, isa) for each in blocks
    ]
    made = SkeletalProgram if "skeleton" in manifest else StructuredProgram
    try:
        program = made(manifest.get("skeleton", manifest.get("structures")), programs, programs[0][0].isa(), view)  # pyright: ignore[reportArgumentType]
    except ArtifactError as error:
        raise ArtifactError(f"'{artifact.shown_path(path)}': {error}") from None
    return program, described(manifest, [about for _, about in programs])


def has_blocks(manifest: Manifest) -> bool:
    """Whether it is a model that is several programs."""
    return "structures" in manifest or "skeleton" in manifest


def block_count(manifest: Manifest) -> int:
    """How many programs it has."""
    if "skeleton" in manifest:
        return 1 + max((int(cast("Any", each[2])) for each in manifest["skeleton"]["kinds"]), default=-1)
    return len(manifest["structures"]["kinds"]) if "structures" in manifest else 0


def read_described(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of any file, without loading its code: of a model over structures with what its blocks' programs say, for the best
    target. Raises ArtifactError."""
    manifest = artifact.read_manifest(path)
    if not has_blocks(manifest):
        return manifest
    count = block_count(manifest)
    blocks = [artifact.block_manifest(artifact.read_section(path, f"block/{number}/manifest"), number) for number in range(count)]
    weights = [weight for block in blocks for weight in block["weights"]]
    whole = described(manifest, [artifact.manifest_for(block, block["code"][-1]) for block in blocks])
    return cast("Manifest", {**whole, "code": blocks[0]["code"], "weights": weights})


def described(manifest: Manifest, blocks: Sequence[Manifest]) -> Manifest:
    """The manifest with the checks, kernels and counters of the blocks' programs, which are numbered: "0.kernel3"."""
    kernels: list[dict[str, object]] = []
    counters: list[str] = []
    for number, block in enumerate(blocks):
        for each in block["kernels"]:
            shifted = [place + len(counters) for place in cast("list[int]", each.get("counters", []))]
            names = {key: f"{number}.{each[key]}" for key in ("name", "kernel") if key in each}
            kernels.append({**each, **names, **({"counters": shifted} if "counters" in each else {})})
        counters += [f"{number}.{name}" for name in block["counters"]]
    checks = [check for block in blocks for check in block["checks"]]
    return cast("Manifest", {**manifest, "checks": checks, "kernels": kernels, "counters": counters})
