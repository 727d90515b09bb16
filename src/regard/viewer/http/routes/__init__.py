"""Routes: what can be asked over HTTP, one file for each thing that is asked about."""
