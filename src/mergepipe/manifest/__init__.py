"""What was done, as values."""
