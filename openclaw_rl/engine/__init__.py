"""Engines by name. A dotted path (``my_pkg.my_module:MyEngine``) works as well."""
