"""What coupled methods share: an omission has no bound in proportion to what is left out, only a reason."""

from __future__ import annotations

import numpy as np

from mergepipe.operators.contract import Norms, Reads


def reason_unless_complete(reason: str, norms: Norms, read: Reads) -> Norms | str:
    """Zero per block where every nonzero delta is read, else `reason`."""
    if ((norms > 0.0) & ~read).any():
        return reason
    return np.zeros(norms.shape[1])
