"""The process that tells what claims use of GPUs: reads, joins (``node/usage/``), serves, and writes what it found."""
