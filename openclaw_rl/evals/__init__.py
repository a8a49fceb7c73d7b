"""Measurements that need no running server; each file is one, called by the command line."""
