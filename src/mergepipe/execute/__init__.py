"""Do it: stream the planned bytes, combine, write."""
