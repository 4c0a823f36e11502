import dataclasses
import itertools

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from asyncrl.analysis.benchmark.simulation import _Player, measure_pure_simulation, record
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.factory import make_run_env
from asyncrl.envs.spaces import read_spec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.storage import checkpoint

CONFIG = TrainConfig(env="CartPole-v1", encoder_mlp_layers=[8])
NUM_ENVS, NUM_STEPS = 3, 60


def saved_policy(config, folder):
    env = make_run_env(config)
    spec = read_spec(env, config.env)
    env.close()
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data()}
    model = ActorCritic(spec, config)
    return checkpoint.save(folder, checkpoint.Checkpoint(model.state_dict(), {}, state), env_steps=0, keep=1)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A policy's episodes: its environments, its file."""
    folder = tmp_path_factory.mktemp("recording")
    recorded = record(CONFIG, saved_policy(CONFIG, folder), NUM_ENVS, NUM_STEPS)
    recorded.save(folder / "recording.npz")
    return recorded, folder / "recording.npz"


def play(path, num_envs, num_steps, first_env_idx=0):
    steps = _Player(CONFIG, first_env_idx, num_envs, path).steps()
    return sum(1 for _ in itertools.islice(steps, num_steps))


def test_recorded_episodes_can_be_played_again_and_again(recording):
    recorded, path = recording
    assert recorded.ended.any(axis=1).all(), "every environment saw an end, so that a replay has something to miss"
    assert (recorded.seeds[:, 1:][recorded.ended] > 0).all()
    assert len(set(recorded.seeds[recorded.seeds > 0].tolist())) == NUM_ENVS + recorded.ended.sum()
    assert play(path, NUM_ENVS, 2 * NUM_ENVS * NUM_STEPS + 1) == 2 * NUM_ENVS * NUM_STEPS + 1
    assert play(path, 1, NUM_STEPS, first_env_idx=2) == NUM_STEPS, "a worker plays its own rows"


@pytest.mark.parametrize("name", ["actions", "seeds"])
def test_other_episodes_than_the_recorded_are_noticed(recording, tmp_path, name):
    recorded, _ = recording
    changed = 1 - recorded.actions if name == "actions" else recorded.seeds + 1
    dataclasses.replace(recorded, **{name: changed}).save(tmp_path / "changed.npz")
    with pytest.raises(EnvironmentFailed, match="does not repeat"):
        play(tmp_path / "changed.npz", NUM_ENVS, NUM_ENVS * NUM_STEPS)


@pytest.mark.usefixtures("leaves_nothing")
def test_processes_step_at_random_and_from_a_recording(recording):
    at_random = measure_pure_simulation(CONFIG, 2, 2, seconds=0.1, warm_up_s=0.0)
    replayed = measure_pure_simulation(CONFIG, 1, 3, seconds=0.1, warm_up_s=0.0, recording=recording[1])
    vectorized = measure_pure_simulation(CONFIG, 1, 3, seconds=0.1, warm_up_s=0.0, is_vectorized=True)
    assert min(at_random, replayed, vectorized) > 0


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("space_envs:MaskedChoice-v0", {}),  # each of them raises after a forbidden action
        ("space_envs:Masked-v0", {}),
        ("agent_envs:masked", {}),
        ("tensor_envs:make_masked", {"env_kwargs": {"autoreset_mode": "NextStep"}, "env_backend": "tensor"}),
    ],
)
def test_random_actions_are_those_that_the_masks_allow(env, settings):
    player = _Player(TrainConfig(env=env, **settings), 0, NUM_ENVS, None, is_vectorized=bool(settings))
    assert sum(1 for _ in itertools.islice(player.steps(), 300)) == 300


def test_an_agent_gets_random_actions_of_its_own_space():
    config = TrainConfig(env="agent_envs:mixed_actions")
    env = make_run_env(config)
    for actions in itertools.islice(_Player(config, 0, 1, None)._actions(env), 20):
        assert [space.contains(action) for (_, space), action in zip(env.spaces, actions, strict=True)] == [True] * 3


@pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])
def test_a_vectorized_step_counts_once_for_each_environment(mode, monkeypatch):
    taken = []
    monkeypatch.setattr(SyncVectorEnv, "step", counting(SyncVectorEnv.step, taken))
    kwargs = {"autoreset_mode": mode, "terminates": True, "length": 2}
    config = TrainConfig(env="probe_envs:VectorEndlessReward-v0", env_kwargs=kwargs, env_backend="gym_vector")
    steps = _Player(config, 0, NUM_ENVS, None, is_vectorized=True).steps()
    for _ in itertools.islice(steps, 5 * NUM_ENVS):
        pass
    assert len(taken) == 5


def counting(step, taken):
    def step_and_count(*args):
        taken.append(args)
        return step(*args)

    return step_and_count


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize(
    ("env", "env_kwargs", "told"),
    [
        ("probe_envs:Failing-v0", {"fail_at": 5}, "asked to fail"),
        ("setting_envs:DiesEarly", {}, r"^A process of the pure simulation died\.$"),
    ],
)
def test_a_failure_of_an_environment_is_told(env, env_kwargs, told):
    with pytest.raises(EnvironmentFailed, match=told):
        measure_pure_simulation(TrainConfig(env=env, env_kwargs=env_kwargs), 2, 1, seconds=0.1)


@pytest.mark.parametrize("env_id", ["space_envs:MaskedChoice", "space_envs:LitSide"])
def test_policies_of_other_spaces_and_with_memory_are_recorded(tmp_path, env_id):
    config = TrainConfig(env=env_id, encoder_mlp_layers=[8], use_rnn=True, rnn_size=4)
    recorded = record(config, saved_policy(config, tmp_path), 2, 5)
    assert recorded.actions.shape[:2] == (2, 5)


def test_games_are_replayed_with_an_episode_for_each_life(tmp_path):
    pytest.importorskip("ale_py")
    config = TrainConfig(env="ALE/Breakout-v5", encoder_conv_mlp_layers=[8])
    recorded = record(config, saved_policy(config, tmp_path), 1, 200)
    assert recorded.ended.any()
    recorded.save(tmp_path / "game.npz")
    steps = _Player(config, 0, 1, tmp_path / "game.npz").steps()
    assert sum(1 for _ in itertools.islice(steps, 200)) == 200
