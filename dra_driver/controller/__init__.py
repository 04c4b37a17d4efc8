"""The controller process: what needs a view of the whole cluster. Reads and writes the API server alone."""
