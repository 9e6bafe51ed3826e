"""disc on Ray: models on Ray Serve (`start`, `deploy`), compiling and tuning on the machines of a cluster (`cluster.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from disc.serving.ray.deployment import application, deploy, start

__all__ = ["application", "deploy", "start"]


def __getattr__(name: str) -> object:
    """Imports Ray when something that needs it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'disc.serving.ray' has no attribute {name!r}")
    from disc.serving.ray import deployment

    return getattr(deployment, name)
