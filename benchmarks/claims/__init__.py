"""Claims of the lectures, measured: one module each, with a quick default, `--full` for the figures of docs/course."""
