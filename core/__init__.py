"""The ground floor, which every room uses. Imports no other room."""
