"""The basic statistics: means, accuracy, agreement beyond chance, the bootstrap."""
