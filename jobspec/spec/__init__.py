"""Definition of a job: the models with every key, and the rules between keys."""
