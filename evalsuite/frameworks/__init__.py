"""One short module of wiring per published framework."""
