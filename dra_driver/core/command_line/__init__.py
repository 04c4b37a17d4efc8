"""Run the programs `dra-driver` and `kubectl dra`: find the subcommand, print tables."""
