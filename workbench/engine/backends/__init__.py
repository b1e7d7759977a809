"""One module a backend; the registry is this folder."""
