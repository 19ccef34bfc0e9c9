"""The command line: thin commands on top of everything else. Nothing heavy is imported before a command needs it."""
