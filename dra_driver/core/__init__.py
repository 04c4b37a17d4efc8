"""Hold values and helpers that every other room uses."""
