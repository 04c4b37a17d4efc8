"""Tests of the page's values."""
