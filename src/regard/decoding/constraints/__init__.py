"""Search for translations that begin or continue as the caller says."""
