"""Bytes: ranged, metered reads. `open_store` is the only way to one."""
