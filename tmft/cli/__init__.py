"""The command line: the parser, the options of every command in groups, and the commands behind `tmft
NAME`.
"""
