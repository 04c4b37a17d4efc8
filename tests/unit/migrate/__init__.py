"""Tests of dra_driver/migrate."""
