"""How well models play the seeker: scores, pairwise choices, an audit."""
