"""The worker: owns key groups, runs operators on them, applies every sub-batch once."""
