"""People's scores (and synthetic ones, true by construction), and the ranker's training sets built from them."""
