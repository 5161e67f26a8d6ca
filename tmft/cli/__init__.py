"""The command line: the parser, the options in groups by feature, and the commands of `tmft NAME`."""
