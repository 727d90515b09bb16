"""Drawing: heatmaps and figures for the terminal and for files."""
