"""Records → figures: leaderboards, agreement, correlation, tests, metrics of texts."""
