"""Small repositories, right as they are. Bugs are planted into copies (``swe_tasks.py``)."""
