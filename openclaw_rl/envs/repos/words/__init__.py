"""Words and sentences."""
