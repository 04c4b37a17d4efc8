"""Controllers of the embedded cluster: each looks at all of its objects and makes the step that is missing."""
