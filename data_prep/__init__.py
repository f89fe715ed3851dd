"""Records and the corpora, role cards and score sets that are made of them."""
