"""Ready-made callbacks in runs of several policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from asyncrl.monitoring.reports import EvaluationReport
from asyncrl.observers.callbacks import StopTrainingOnNoModelImprovement


def evaluated(policy_idx: int, mean_reward: float) -> EvaluationReport:
    return EvaluationReport(1000, 10, mean_reward, None, 50.0, 1, 0.1, policy_idx)


def test_the_run_stops_when_no_policy_improves_any_more() -> None:
    reasons: list[str] = []
    run: Any = SimpleNamespace(plan=SimpleNamespace(num_policies=2), stop=reasons.append)
    callback = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1)
    for policy_idx, mean_reward in ((0, 5.0), (1, 1.0), (0, 4.0), (1, 2.0), (0, 3.0), (1, 3.0), (0, 2.0), (1, 2.0)):
        callback.on_evaluation(run, evaluated(policy_idx, mean_reward))
    assert reasons == []  # policy 1 has missed its best once
    callback.on_evaluation(run, evaluated(1, 1.0))
    assert reasons == ["no improvement in 2 evaluations; the best mean return is 5.0"]
