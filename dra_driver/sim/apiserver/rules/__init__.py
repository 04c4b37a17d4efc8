"""Defaults and validation, by kind or group of kinds."""
