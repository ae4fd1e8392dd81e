"""The papers' tables and stated values as data files, in the papers' own units."""
