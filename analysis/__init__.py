"""Offline, without root: from a trace to steps and reports."""
