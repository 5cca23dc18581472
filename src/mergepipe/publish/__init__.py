"""Make it true: one output is either absent or whole, and what is published can be verified."""
