"""Tensors located in bytes."""
