"""Programs that are sent into a sandbox and run there by themselves, with nothing of this package."""
