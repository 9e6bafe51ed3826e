"""Whether a tensor still has the elements that something was made with.

PyTorch counts writes in `_version`, but for those through `.data`: another tensor put there (`p.data = x`, `module.to(...)`) shows in the
address. A write *into* `p.data` shows nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


def address_of(tensor: torch.Tensor) -> int:
    """0 for tensors without memory of their own, such as wrappers of others."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


@dataclass(frozen=True, eq=False)
class Contents:
    """version: how many writes were counted. address: in bytes. memory: shares it, so that nothing else gets its address. trained: whether
    the tensor had gradients."""

    version: int
    address: int
    memory: torch.Tensor
    trained: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Contents:
        return cls(tensor._version, address_of(tensor), tensor.detach(), tensor.requires_grad)

    def are_those_of(self, tensor: torch.Tensor) -> bool:
        return tensor._version == self.version and address_of(tensor) == self.address
