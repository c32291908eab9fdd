"""Peers with which our code is compared, written as they are published."""
