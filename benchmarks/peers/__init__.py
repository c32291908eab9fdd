"""Peers that we are measured against, written as they are published."""
