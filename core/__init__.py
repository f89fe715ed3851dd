"""The floor: what every room uses. Imports no other room."""
