"""Values and helpers that every package uses: threads, text and times."""
