"""Tests of dra_driver/kubectl/migrate."""
