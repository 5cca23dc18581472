"""Intent: what the user asked for, before any model is opened."""
