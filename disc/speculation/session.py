"""What a compile depends on besides the program: options, the environment, the machine. Nothing here loads a front end or passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from disc.config import Environment, Options, checked_options, read_environment
from disc.errors import TargetError
from disc.ral import _ral
from disc.speculation.block_trees import find_trees
from disc.speculation.inputs import find_limits
from disc.speculation.tree import Tree, find_tree
from disc.targets.select import select_targets
from disc.targets.target import Target


@dataclass(frozen=True)
class Session:
    """What a compile depends on besides the program: made once, before it begins, so that the key of the cache and the code cannot
    disagree.

    targets: with all that a native one could use. tree: chooses the schedules of GEMMs. threads: that may compile.
    """

    targets: tuple[Target, ...]
    options: Options
    environment: Environment
    tree: Tree
    threads: int


def open_session(target: str | Sequence[str] = "native", options: Options | None = None, tree: Tree | None = None) -> Session:
    """Reads the environment and the machine. tree: None = the one of this machine. Raises TargetError; DiscError for the environment."""
    options, environment = checked_options(options), read_environment()
    threads = options.threads or environment.threads or int(_ral.find_cores("")["threads"])
    targets = tuple(dataclasses.replace(each, tf32=options.tf32 and each.gpu is not None) for each in select_targets(target))
    _check_options(targets, options)
    limits = find_limits(environment.cache_dir)
    targets = tuple(each if each.gpu is None else dataclasses.replace(each, trees=find_trees(environment.cache_dir, each.gpu.architecture))
                    for each in targets)  # fmt: skip
    targets = targets if limits is None else tuple(each if each.gpu is not None else each.reading(limits) for each in targets)
    return Session(targets, options, environment, tree or find_tree(environment.cache_dir), threads)


def _check_options(targets: Sequence[Target], options: Options) -> None:
    """Raises TargetError for an option that a target cannot have."""
    gpus = [target.label for target in targets if target.gpu is not None]
    if gpus and options.dtype == "int8":
        raise TargetError(f'dtype="int8" is for CPUs, not for {", ".join(gpus)}: choose "bf16" or "f16", or leave the GPU out')
