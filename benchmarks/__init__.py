"""Benchmarks: families of real shapes, and merges of them beside copying and reading the same bytes."""
