"""The commands, one module each: they parse, call and print."""
