"""Everything of a checkpoint that is not a tensor."""
