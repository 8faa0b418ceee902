"""The version of ringloom, printed in plans, programs and the command line."""

VERSION = "0.1.0"
