"""A small DRA driver for the conformance suite to test: correct, or with one fault of `faults.FAULTS`."""
