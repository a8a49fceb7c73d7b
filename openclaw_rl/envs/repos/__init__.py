"""Small repositories with correct code. Bugs are planted into copies (``swe_tasks.py``)."""
