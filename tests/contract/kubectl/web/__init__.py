"""The page behind starlette's test client."""
