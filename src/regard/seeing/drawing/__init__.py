"""Drawing: heatmaps, shaded text and reports for the terminal; figures as PNG, SVG or PDF."""
