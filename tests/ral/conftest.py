import numpy as np
import pytest
from programs import ADD, add_manifest, build

from disc.ral.executable import Executable


@pytest.fixture
def adder() -> Executable:
    """c = a + b + 0.5 for f32 [S0, 4]."""
    return Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))])
