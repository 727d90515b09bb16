"""Tools that write documentation: pages, tables, pictures."""
