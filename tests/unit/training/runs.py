"""Runs of the trainer that may be killed in the middle."""

from outrider.training.run import RunOptions, prepare_run


def train(run: RunOptions, stop_at: int | None = None):
    """Train to the end, or until a step after which the process is gone."""

    class Killed(Exception):
        pass

    def told(progress):
        if progress.step == stop_at:
            raise Killed

    prepared = prepare_run(run, told)
    try:
        prepared.trainer.run()
    except Killed:
        return None
    return prepared
