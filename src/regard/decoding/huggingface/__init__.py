"""Export to folders of the library `transformers`, where it has a class that computes the same."""

from .transformers_export import export_transformers as export_transformers
