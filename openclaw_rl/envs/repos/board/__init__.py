"""A board game."""
