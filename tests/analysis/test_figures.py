import pytest

from asyncrl.analysis.benchmark.results import learning_figures, throughput_figures
from asyncrl.analysis.benchmark.watch import TaskFailed, Usage

USAGE = Usage(cpu=((0.0, 0.0), (100.0, 200.0)), peak_pss_bytes=5, peak_rss_bytes=7)


def record(at_s, env_steps, fps=None, **more):
    named = {name.replace("__", "/"): value for name, value in more.items()}
    base = {"env_steps": env_steps, "time/time_elapsed": at_s} | ({"time/fps": fps} if fps else {})
    return base | named


def run():
    """Records of a run whose first step came at 2 s; after the warm-up of 10 s it trains 100 steps/s, then 50."""
    return [
        record(5.0, 1000, 999.0, lag__max=50.0, perf__learner_busy=0.1, train__n_updates=10, perf__dropped_samples=30),
        record(12.5, 2000, 999.0, lag__max=50.0, perf__learner_busy=0.1, train__n_updates=20, perf__dropped_samples=40),
        record(22.0, 3000, 100.0, lag__mean=1.0, lag__p95=2.0, lag__max=3.0, perf__learner_busy=0.4,
               profile__learner__sgd=0.3, train__n_updates=28, perf__dropped_samples=40, perf__slots_ready=3.0),
        record(32.0, 3000, perf__learner_busy=0.6, profile__learner__sgd=0.5, train__n_updates=28),
        record(52.5, 4000, 50.0, lag__mean=3.0, lag__p95=4.0, lag__max=9.0, perf__learner_busy=0.8,
               profile__learner__sgd=0.7, train__n_updates=36, perf__dropped_samples=540, perf__slots_ready=3.0),
        record(60.0, 9000, 999.0, lag__max=99.0, train__n_updates=99),
    ]  # fmt: skip


def test_throughput_is_that_of_the_window_and_of_nothing_else():
    found = throughput_figures([run()], startup_s=2.0, warm_up_s=10.0, num_epochs=2, usage=USAGE)
    assert found.window_env_steps == 2000
    assert found.window_s == pytest.approx(10.0 + 20.0)
    assert found.env_steps_per_s == pytest.approx(2000 / 30)
    assert found.sgd_steps_per_s == pytest.approx(16 / 30)
    assert found.learner_samples_per_s == pytest.approx(2 * 2000 / 30)
    assert found.dropped_share == pytest.approx(500 / 2500)
    assert found.samples_per_env_step == pytest.approx(4000 / 2500)
    assert found.cpu_s_per_million_steps == pytest.approx((52.5 - 12.5) * 2 / 2000 * 1e6)
    assert found.lag == {"lag/mean": 2.0, "lag/p95": 3.0, "lag/max": 9.0}
    assert found.shares == {"perf/learner_busy": pytest.approx(0.6), "profile/learner/sgd": pytest.approx(0.5)}
    assert found.lag_records == [[1.0, 2.0, 3.0], [3.0, 4.0, 9.0]]


def test_records_of_evaluations_have_no_time_and_do_not_count():
    evaluation = {"env_steps": 3500, "eval/mean_reward": 7.0}
    records = [evaluation, *run()[:3], evaluation, *run()[3:], evaluation]
    arguments = {"startup_s": 2.0, "warm_up_s": 10.0, "num_epochs": 2, "usage": USAGE}
    assert throughput_figures([records], **arguments) == throughput_figures([run()], **arguments)
    summary = {"env_steps": 9000, "wall_s": 60.0, "ep_rew_mean": None}
    assert learning_figures([records], summary, None) == learning_figures([run()], summary, None)


def test_samples_of_a_replay_are_those_of_its_updates_and_both_sides_waits_are_shares():
    records = [
        {**each, "replay/size": 9.0, "replay/learner_blocked": 0.25, "replay/workers_blocked": 0.5} for each in run()
    ]
    found = throughput_figures(
        [records], startup_s=2.0, warm_up_s=10.0, num_epochs=2, usage=USAGE, replay_batch_size=256
    )
    assert found.learner_samples_per_s == pytest.approx(16 * 256 / 30)
    assert found.samples_per_env_step == pytest.approx(16 * 256 / 2500)
    shares = {name: share for name, share in found.shares.items() if name.startswith("replay/")}
    assert shares == {"replay/learner_blocked": 0.25, "replay/workers_blocked": 0.5}


def test_the_first_rank_counts_steps_and_all_ranks_count_dropped_samples_and_shares():
    other = [
        {
            **each,
            "env_steps": 7,
            "perf/learner_busy": 1.0,
            "perf/dropped_samples": 2 * each.get("perf/dropped_samples", 0),
        }
        for each in run()
    ]
    found = throughput_figures([run(), other], startup_s=2.0, warm_up_s=10.0, num_epochs=2, usage=USAGE)
    assert found.window_env_steps == 2000
    assert found.dropped_share == pytest.approx(1500 / 3500)
    assert found.shares["perf/learner_busy"] == pytest.approx((0.6 + 1.0) / 2)
    # A rank that has ended in the warm-up tells nothing of the window.
    assert throughput_figures([run(), other[:1]], 2.0, 10.0, 2, USAGE).dropped_share == pytest.approx(500 / 2500)


def test_a_run_that_is_too_short_is_not_measured():
    with pytest.raises(TaskFailed, match="--measure_s"):
        throughput_figures([run()], startup_s=2.0, warm_up_s=45.0, num_epochs=2, usage=USAGE)
    with pytest.raises(TaskFailed):
        throughput_figures([[]], startup_s=2.0, warm_up_s=0.0, num_epochs=2, usage=USAGE)


def test_a_curve_begins_with_the_first_finished_episode():
    records = [
        record(1.0, 0, rollout__ep_rew_mean=3.0),
        record(2.0, 100),
        record(3.0, 200, rollout__ep_rew_mean=5.0),
    ]
    for updates, line in enumerate(records):
        line["train/n_updates"] = 10 * updates
    summary = {"env_steps": 250, "wall_s": 4.0, "ep_rew_mean": 6.0}
    of_other = [{**records[-1], "rollout/ep_rew_mean": 9.0}]
    found = learning_figures([records, of_other], summary, evaluated_return=7.0)
    assert found.other_curves == [[[records[-1]["env_steps"], records[-1]["time/time_elapsed"], 9.0]]]
    assert found.curve == [[200.0, 3.0, 5.0]]
    assert (found.env_steps, found.final_return, found.evaluated_return) == (250, 6.0, 7.0)
    assert (found.env_steps_per_s, found.sgd_steps_per_s) == (100.0, 10.0)
    assert learning_figures([records[:2]], summary, None).env_steps_per_s is None
    after_the_end = {**records[-1], "time/time_elapsed": 99.0}
    assert learning_figures([[records[-1], after_the_end]], summary, None).env_steps_per_s is None
