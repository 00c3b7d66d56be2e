"""From schemas and policy to rules, in each engine's language."""
