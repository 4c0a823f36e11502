"""Many runs: a grid of settings (`launch`), and a search for the best settings (`sweep`).

    grid.yaml --grid--> planned runs --launch--> core sets --> asyncrl train, evaluate --> results
                                   `--job_files--> files for Slurm or Kubernetes

    search space --study (Optuna)--> trial --sweep--> core sets --> asyncrl train
                     ^                                                | metrics.jsonl
                     +-------- evaluations so far, objective <--------+
    best trials --final test, fresh seeds--> core sets --> table, importances, settings as a file

Each run is an ordinary run in its own folder, made by a subprocess that ends with this process (`core_sets`). All
state is in files, so the same command continues what was stopped or killed.
"""
