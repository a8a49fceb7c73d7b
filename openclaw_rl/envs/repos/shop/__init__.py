"""Prices and carts."""
