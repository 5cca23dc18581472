"""Pure values: units, dtypes, block geometry, byte extents, digests, counter-based randomness."""
