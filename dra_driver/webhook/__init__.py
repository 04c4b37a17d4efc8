"""The opt-in admission webhook: tells what is wrong with claims, classes and policies when they are applied.

It knows what `kubectl dra lint` knows and says it in the same sentences, for what schemas and admission policies cannot
check. Everything else works without it: the API server ignores that it fails, and nodes check again.

    process                    reads files, listens, starts and stops
    server -> http_message     TLS and HTTP, with limits
    workers -> frames          processes that judge one review each, and are killed when one takes too long
    worker -> review -> verdict, known_policies     one review in, one answer out
"""
