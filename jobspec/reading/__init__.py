"""Read YAML into a Job, or report every mistake with its place in the file."""
