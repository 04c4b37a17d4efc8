"""The page in a real browser, on the embedded cluster: ``make ui-shots``."""
