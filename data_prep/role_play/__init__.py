"""The simulator's training set: dialogues and their system messages, duplicates, decontamination, the mix."""
