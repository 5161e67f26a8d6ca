"""The command line: the parser, the options, grouped by feature, and the commands of `tmft NAME`."""
