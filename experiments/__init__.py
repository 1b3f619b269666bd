"""The experiments: tables and figures of papers, each one command. `python -m experiments --help` says how."""
