"""Broken set-ups, and what `kubectl dra doctor` has to say first of each."""
