"""What just happened, as numbers side by side and as text."""
