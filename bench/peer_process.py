"""The processes of the benchmark's peers: `bench.peer_server` is their other end."""

from __future__ import annotations

from collections.abc import Mapping

from bench.machine import ROOT
from disc.cli.bench.process import TIMED, StoppedProcess


class PeerProcess(StoppedProcess):
    """One peer, for every case that it is asked for."""

    def __init__(self, name: str, environment: Mapping[str, str] = TIMED) -> None:
        """environment: as of `StoppedProcess`."""
        super().__init__(name, "bench.peer_server", environment, ROOT)
