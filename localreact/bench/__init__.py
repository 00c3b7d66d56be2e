"""Measuring: how fast turns are decoded, and beside what."""
