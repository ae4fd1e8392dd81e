"""The tests of a fabric, one module each, and what they share."""
