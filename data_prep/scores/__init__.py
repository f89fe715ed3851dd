"""Scores that people gave (or that hold by construction), and the ranker's training sets made of them."""
