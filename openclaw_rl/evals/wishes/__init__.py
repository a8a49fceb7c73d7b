"""Wishes that nobody tuned for: are they learned, and is nothing else lost?"""
