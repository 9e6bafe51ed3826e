"""`disc ray compile` and `disc ray tune` on a Ray cluster of two nodes: python ray_tasks.py. Run by test_ray_cluster.py, as ray_cluster.py is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray_cluster import HOST, NODE, OTHER

import disc
from disc.config import read_environment
from disc.serving.ray.cluster import Machines, measure, on_ray, slug, tune_kinds
from disc.speculation.sizes import Point

MODELS = """
import torch
from torch import nn

def linear():
    torch.manual_seed(0)
    return nn.Linear(8, 4).eval(), (torch.zeros(3, 8),)

class Half(nn.Module):
    def forward(self, x):
        return x / 2

def half():
    return Half(), (torch.zeros(3),)

def broken():
    raise ValueError("no such weights")
"""


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "node_ip_address": HOST})
    worker = cluster.add_node(**NODE, node_ip_address=OTHER)
    try:
        compiled = compile_models(cluster.address)
        machines = Machines(cluster.address)
        tuned = tune_two_nodes(machines)
        seen = {"compiled": compiled, "tuned": tuned, "lost": lose_a_node(machines, cluster, worker)}
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(seen))


def compile_models(address: str) -> list[dict[str, object]]:
    """Four models, one of which fails; the artifacts compute what they should."""
    Path("code").mkdir()
    Path("code/mymodels.py").write_text(MODELS)
    Path("add.mlir").write_text(
        "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n"
        '  %0 = "stablehlo.add"(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>\n  return %0 : tensor<?xf32>\n}\n'
    )
    names = ["mymodels:linear", "mymodels:half", "mymodels:broken", "add.mlir"]
    command = [
        sys.executable,
        "-m",
        "disc.cli",
        "ray",
        "compile",
        *names,
        "-o",
        "artifacts",
        "--address",
        address,
        "--working-dir",
        "code",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 1, done.stderr[-3000:]  # for the one
    rows = {Path(row["output"]).stem: row for row in json.loads(done.stdout)}
    assert set(rows) == {"linear", "half", "broken", "add"} and "no such weights" in rows.pop("broken")["error"], rows
    assert all(row["error"] is None for row in rows.values()), rows
    assert sorted(each.name for each in Path("artifacts").iterdir()) == ["add.disc", "half.disc", "linear.disc"]
    x = np.arange(5, dtype=np.float32)
    assert np.array_equal(disc.load("artifacts/half.disc")(x), x / 2) and np.array_equal(disc.load("artifacts/add.disc")(x), 2 * x)
    assert disc.load("artifacts/linear.disc")(np.zeros((7, 8), np.float32)).shape == (7, 4)
    return [{"seconds": row["seconds"], "machine": row["machine"]} for row in rows.values()]


def points(m: tuple[int, ...]) -> list[Point]:
    """Three programs, so that both nodes have something to do."""
    return [Point(rows, 16, k, 1, 1, True) for k in (16, 32, 48) for rows in m]


def tune_two_nodes(machines: Machines) -> dict[str, object]:
    """Few sizes: whether measuring, fitting and the records work, not whether the tree is good."""
    found = machines.found()
    assert len(found) == 2 and found[0].kind == found[1].kind and found[0].cpus == 2, found
    counted: Counter[str] = Counter()
    measured = on_ray(machines)

    def counting(machine: object, *arguments: object) -> object:
        counted[machine.node] += 1  # pyright: ignore[reportAttributeAccessIssue]
        return measured(machine, *arguments)  # pyright: ignore[reportArgumentType]

    store = read_environment().cache_dir / "tune"
    fitted = tune_kinds(found, counting, store, lambda _: points((1, 8)), lambda _: points((1, 2, 5, 8)), top=3)  # pyright: ignore[reportArgumentType]
    assert set(counted) == {each.node for each in found} and counted.total() == 6, counted  # both took part; a program each
    kind = found[0].kind
    assert fitted[kind].fitted.sizes == 12 and len(fitted[kind].tree.schedules) <= 3
    assert (store / slug(kind) / "schedules.json").read_text() == fitted[kind].tree.to_json() + "\n"
    counted.clear()
    tune_kinds(found, counting, store, lambda _: points((1, 8)), lambda _: points((1, 2, 5, 8)), top=3)  # pyright: ignore[reportArgumentType]
    assert not counted, "measured again what is known"
    return {"kind": kind, "sizes": fitted[kind].fitted.sizes}


def lose_a_node(machines: Machines, cluster: Cluster, worker: object) -> dict[str, object]:
    """A machine that is gone when its turn comes: the other one does its part."""
    found = machines.found()
    cluster.remove_node(worker, allow_graceful=False)
    fitted = tune_kinds(found, on_ray(machines), Path("lost"), lambda _: points((1,)), lambda _: points((1, 3)), top=2)
    assert measure([], ()) == []
    return {"sizes": fitted[found[0].kind].fitted.sizes}


if __name__ == "__main__":
    main()
    print("conformant")
