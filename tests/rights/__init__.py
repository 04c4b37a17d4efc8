"""What each process asks of a real API server, with its own token, and what the API server refuses it.

`tests/e2e/test_rights.py` runs it; `docs/internals/rights.md` is made from its figures.
"""
