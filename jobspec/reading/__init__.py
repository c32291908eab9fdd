"""YAML → Job, or every mistake with its place in the file."""
