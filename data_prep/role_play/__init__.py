"""The simulator's training set: dialogues with system messages, deduplication, decontamination, the mix."""
