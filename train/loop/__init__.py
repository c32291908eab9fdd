"""The training: what it needs (setup), the trainer, one step, evaluation, losses, optimizers and their schedules."""
