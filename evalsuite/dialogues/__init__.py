"""Dialogues that are held, and replies on real histories."""
