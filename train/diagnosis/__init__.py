"""What `python -m train.doctor` asks of the ranks, measures between them and finds wrong."""
