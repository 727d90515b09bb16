"""Export: the page as one JavaScript module, as a single HTML file, and as a notebook widget."""
