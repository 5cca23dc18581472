"""`model.safetensors.index.json`: which tensor is in which shard."""

from __future__ import annotations

import json
from collections.abc import Mapping

NAME = "model.safetensors.index.json"


def weights_index(weight_map: Mapping[str, str], total_size: int) -> bytes:
    """The index file's bytes; `total_size` is the tensors' bytes over all shards."""
    document = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    return (json.dumps(document, indent=2) + "\n").encode()
