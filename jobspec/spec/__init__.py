"""What a job is: the models with every key, and the rules between keys."""
