"""Arithmetic: the merge methods, as pure functions on tiles with declared needs."""
