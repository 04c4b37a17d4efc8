"""The demonstration, and how examples are run and checked on any cluster."""
