"""Controllers of the embedded cluster. Each reads all of its objects and makes the next step that is missing."""
