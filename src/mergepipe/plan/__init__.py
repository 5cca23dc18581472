"""What to do: the logical plan, the access plan, the schedule."""
