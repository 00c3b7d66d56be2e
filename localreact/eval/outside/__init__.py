"""Suites of others, made into suites of ours from where the user has them; none of their data ships here."""
