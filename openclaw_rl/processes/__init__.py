"""The serve process, the learn process, the supervisor that runs it, and their parts."""
