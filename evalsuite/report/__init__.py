"""A run folder's records → tables and the report."""
