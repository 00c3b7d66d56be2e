"""Engines: what holds a turn to its grammar while it is decoded."""
