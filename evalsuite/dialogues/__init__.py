"""Holds dialogues, and collects replies on real histories."""
