"""The papers' own tables: as printed, recomputed, beside ours."""
