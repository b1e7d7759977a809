"""Rows from elsewhere become runs, each labelled with what is unknown about it. Nothing is executed."""
