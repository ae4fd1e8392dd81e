"""The options of every command.

One module for each group of commands, with `declare(command, name)`. They import no numpy, plots or
protocols, so that help is fast. `tests/unit/test_help.py` checks this, and that the defaults and
choices written here are those in force.
"""
