"""Makers of hostile files, as code: each row is a name, the bytes, and words that the refusal must hold."""
