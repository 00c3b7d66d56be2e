"""Endpoints: anything that completes text."""
