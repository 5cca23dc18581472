"""Mergeable numbers: sums, counts and order statistics of deltas, independent of how data arrives."""
