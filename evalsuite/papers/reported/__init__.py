"""The papers' own tables: as printed, recomputed, and next to ours."""
