"""Days and times."""
