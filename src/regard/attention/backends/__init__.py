"""Backends: ways to compute one request. `reference` defines what is right; the others must agree with it.

Each is a module with `refusal(request)`, the reason it cannot do a request (None if it can), and `run(request)`,
which gives the output and, where the kernel leaves it, the row state. They never import one another.
"""
