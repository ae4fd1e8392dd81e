"""Testbeds: a network of namespaces on one machine."""
