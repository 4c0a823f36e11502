"""The learner: it owns the slots' order, makes datasets of them, trains, and publishes weights."""
