"""Plan claims. No I/O."""
