"""Settings, opaque parameters of claims, and policies: decoding, checks and their generated schemas.

Other packages import its modules: the MPS host loads ``options.py`` alone.
"""
