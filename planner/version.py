"""The version of ringloom, which plans, programs and the command line name."""

VERSION = "0.1.0"
