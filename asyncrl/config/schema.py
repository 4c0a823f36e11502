"""The one schema of a run: every setting, its type, range, default and meaning.

`asyncrl.config.other_names` lists the settings that have the names of other libraries. `auto` values stay `auto` here;
`asyncrl.config.plan` resolves them into the `ResourcePlan` that the roles read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema

from asyncrl.config.algorithms import BUILT_IN, Algorithm, find_algorithm
from asyncrl.config.env_maker import MakesEnv, as_env
from asyncrl.config.errors import UsageError


def _read_env(given: Any) -> str:
    if isinstance(given, str) or callable(given):
        return as_env(given)
    raise ValueError("expected text or a callable that makes an environment")


def _check_algo(name: Any, info: ValidationInfo) -> str:
    try:
        find_algorithm(name, info.data.get("import_modules", ()))
    except (UsageError, TypeError) as error:
        raise ValueError(str(error)) from error
    return str(name)


Auto = Literal["auto"]
ImageChannels = Literal["auto", "first", "last"]
ActionMapping = Literal["raw", "rescaled", "squashed"]
"""How continuous actions of the policy become the environment's, see `asyncrl.envs.actions`."""
EnvSource = Annotated[
    str | MakesEnv,
    PlainValidator(_read_env),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string"}),
]
AlgorithmName = Annotated[str, PlainValidator(_check_algo), WithJsonSchema({"type": "string", "enum": list(BUILT_IN)})]
PositiveInt = Annotated[int, Field(gt=0)]
AutoPositiveInt = PositiveInt | Auto
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]

ATARI_FRAMESKIP = 4
"""Frames of a game for which an action is held, unless env_kwargs say otherwise."""

OF_ONE_START = ("train_dir", "experiment", "restart_behavior", "train_for_seconds", "quiet", "profile")
"""Settings of one start of the program: the run's config.yaml does not keep them, and a resumed run does not inherit
them."""


_BEFORE_THEY_WERE_SETTINGS: dict[str, Any] = {"action_unit": "raw", "ppo_objective": "clip", "target_kl": None}
"""Values for saved settings that lack a name, where the behaviour then is not today's default."""


def _setting(default: Any, section: str, description: str) -> Any:
    return Field(default=default, description=description, json_schema_extra={"section": section})


class TrainConfig(BaseModel):
    """All settings of a training run, as the user gave them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)

    @classmethod
    def from_saved(cls, values: Any) -> TrainConfig:
        """The settings that a run or a checkpoint was saved with, perhaps by a version that had fewer of them.

        Raises:
            pydantic.ValidationError: they are not possible.
            UsageError: the module of the algorithm cannot be imported.
        """
        if not isinstance(values, dict):
            return cls.model_validate(values)
        algorithm = find_algorithm(str(values.get("algo", "ppo")), values.get("import_modules", ()))
        if values.get("compile") == "inductor":  # computed the same as plain updates
            values = {**values, "compile": "off"}
        return (algorithm.settings or cls).model_validate({**_BEFORE_THEY_WERE_SETTINGS, **values})

    # What to train
    env: EnvSource = _setting(
        "", "run", "Gymnasium id, or MODULE:Id or MODULE:function for an environment that a module registers or makes"
    )
    env_kwargs: dict[str, Any] = _setting({}, "run", "keyword arguments for the environment, as JSON")
    env_backend: Literal["auto", "gym", "gym_vector", "envpool", "tensor"] = _setting(
        "auto",
        "run",
        "how environments are stepped: one by one (gym); several at once, by the vectorized implementation that is "
        "registered with Gymnasium (gym_vector), by EnvPool under its own ids (envpool), or by one that takes and "
        "returns tensors on the learner's device (tensor). auto is gym_vector where it has the same spaces, else gym",
    )
    atari_preprocessing: bool = _setting(
        True,
        "run",
        "for ids ALE/*: stack 4 grey frames of 84 x 84, repeat actions for 4 frames, start with no-ops; in training "
        "a lost life ends the episode",
    )
    import_modules: list[str] = _setting(
        [],
        "run",
        "modules that register your networks and algorithms; every process imports them before it builds a network",
    )
    algo: AlgorithmName = _setting(
        "ppo", "run", "learning algorithm, or MODULE:NAME for one that a module has, or a name that a module registers"
    )
    backend: Literal["actor_learner", "hogwild"] = _setting(
        "actor_learner",
        "run",
        "rollout workers and a learner (actor_learner), or workers that each collect and train one shared set of "
        "parameters (hogwild); --algo=a3c is short for --backend=hogwild --algo=a2c --hogwild_mode=synced",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = _setting(
        0, "run", "seed of weights, exploration and environments, each of which gets a seed derived from it"
    )
    train_for_env_steps: PositiveInt = _setting(
        10_000_000,
        "run",
        "stop after training on this many environment steps in total; a resumed run counts its earlier steps",
    )
    train_for_seconds: PositiveFloat | None = _setting(
        None,
        "run",
        "stop after this many seconds of training in total; a resumed run has no limit unless the flag is given again",
    )

    # Where the run lives
    train_dir: str = _setting("train_dir", "folder", "folder that holds all runs")
    experiment: str | None = _setting(
        None, "folder", "name of the run's folder in train_dir; by default made of env, algo and time"
    )
    restart_behavior: Literal["resume", "restart", "overwrite"] = _setting(
        "resume",
        "folder",
        "what to do if the run exists: resume it with its settings from its newest checkpoint; restart at step 0 and "
        "keep the old run as NAME_old; or overwrite, which deletes the old run",
    )
    save_every_s: PositiveFloat = _setting(
        120.0, "folder", "seconds between checkpoints; one is always saved at the end"
    )
    save_every_env_steps: PositiveInt | None = _setting(
        None, "folder", "environment steps between checkpoints, in addition to those of save_every_s"
    )
    keep_checkpoints: PositiveInt = _setting(2, "folder", "how many of the newest checkpoints are kept")
    save_milestones_s: PositiveFloat | None = _setting(
        None, "folder", "seconds between checkpoints in checkpoints/milestones, which are never deleted"
    )
    save_best_metric: Literal["auto", "none", "eval", "train"] = _setting(
        "auto",
        "folder",
        "keep the checkpoint with the best mean return of an evaluation (eval) or of the last 100 training episodes "
        "(train) in checkpoints/best; auto takes eval where eval_every_env_steps is set",
    )
    checkpoint_resets: bool = _setting(
        False,
        "folder",
        "serial mode: at every checkpoint of save_every_env_steps, reset environments and random numbers to a state "
        "that follows from the seed and the steps; a resumed run then equals an uninterrupted one to the bit",
    )
    report_every_s: PositiveFloat = _setting(5.0, "folder", "seconds between records in TensorBoard and metrics.jsonl")

    init_from: str | None = _setting(
        None,
        "folder",
        "run or checkpoint, by path or name, whose weights, statistics and optimizer to start from, at step 0",
    )

    # Evaluation during training
    eval_every_env_steps: PositiveInt | None = _setting(
        None, "evaluation", "environment steps between evaluations of the policy, which run in a separate process"
    )
    eval_episodes: PositiveInt = _setting(10, "evaluation", "episodes of an evaluation")
    eval_deterministic: bool = _setting(
        False, "evaluation", "evaluate with the most likely actions instead of sampled ones"
    )

    # How the roles work together
    async_rl: bool = _setting(
        True, "roles", "collect samples while training (True), or collect and train in turn (False)"
    )
    serial_mode: bool = _setting(
        False, "roles", "run everything in one process, for debuggers; repeatable to the bit on a CPU"
    )
    num_batches_to_accumulate: PositiveInt = _setting(
        1, "roles", "async: collecting pauses when this many datasets wait or are being trained"
    )
    fixed_lag: bool = _setting(
        False,
        "roles",
        "async: every sample is exactly one dataset old; all workers collect a dataset while the one before is "
        "trained, with weights that do not change meanwhile, and the faster side waits",
    )
    num_workers: AutoPositiveInt = _setting("auto", "roles", "rollout worker processes")
    num_envs_per_worker: AutoPositiveInt = _setting("auto", "roles", "environments in each rollout worker")
    worker_num_splits: AutoPositiveInt = _setting(
        "auto", "roles", "groups of a worker's environments that take turns: one steps while another waits for actions"
    )
    inference_mode: Literal["auto", "local", "central"] = _setting(
        "auto", "roles", "where actions are computed: in each rollout worker, or by inference workers in batches"
    )
    num_inference_workers: AutoPositiveInt = _setting(
        "auto", "roles", "inference worker processes (central inference); auto is one for each of --inference_devices"
    )
    inference_max_wait_ms: NonNegativeFloat = _setting(
        0.3, "roles", "longest time in milliseconds that an inference worker waits to fill a batch"
    )
    device: str = _setting("auto", "roles", "device of learner and central inference: auto, cpu, cuda or cuda:N")
    learner_device: str = _setting("auto", "roles", "device of the learner alone; auto is that of --device")
    inference_devices: tuple[str, ...] = _setting(
        (), "roles", "devices of the inference workers, assigned in turn; [] means that of --device"
    )
    precision: Literal["auto", "float32", "bf16"] = _setting(
        "auto",
        "roles",
        "number format of matrix products in training; weights and losses are always float32. auto is bf16 for SAC "
        "where the hardware computes it faster, otherwise float32",
    )
    compile: Literal["auto", "off", "cuda_graph"] = _setting(
        "auto",
        "roles",
        "run each update, and each batch of central inference, as one CUDA graph (cuda_graph); auto is cuda_graph on a "
        "CUDA device and off on a CPU",
    )
    learner_threads: AutoPositiveInt = _setting("auto", "roles", "CPU threads of the learner")
    max_policy_lag: PositiveInt = _setting(
        1000, "roles", "trajectories older than this many policy versions (optimizer steps) are dropped before training"
    )
    debug_forced_lag: Annotated[int, Field(ge=0)] = _setting(
        0, "roles", "publish weights this many optimizer steps late; for experiments and tests"
    )

    debug_skip_training: bool = _setting(
        False, "roles", "collect trajectories without training on them, to measure the speed of sampling"
    )

    # Samples
    rollout: PositiveInt = _setting(32, "samples", "steps of each environment in one trajectory")
    batch_size: PositiveInt = _setting(128, "samples", "samples in a minibatch")
    num_batches_per_epoch: PositiveInt = _setting(
        16, "samples", "minibatches in a dataset; a dataset is batch_size times this many samples"
    )
    num_epochs: PositiveInt = _setting(10, "samples", "passes over each dataset")
    shuffle_minibatches: bool = _setting(True, "samples", "fill minibatches with samples in random order")
    reward_scale: PositiveFloat = _setting(1.0, "samples", "factor on rewards before training")
    reward_clip: PositiveFloat | None = _setting(None, "samples", "clip scaled rewards to plus or minus this value")

    # Learning
    recompute_values: bool = _setting(
        True,
        "learning",
        "compute advantages of samples of older policies with values of the current critic, not with those stored when "
        "acting",
    )
    recompute_advantages: bool = _setting(
        False,
        "learning",
        "compute values, advantages and returns again, with the critic as it is by then, before each pass over a "
        "dataset but the first",
    )
    with_vtrace: bool = _setting(
        False,
        "learning",
        "correct advantages and returns for the age of the samples (V-trace), with values of the current critic",
    )
    vtrace_rho: PositiveFloat = _setting(1.0, "learning", "V-trace: upper limit of the weights of temporal differences")
    vtrace_c: PositiveFloat = _setting(1.0, "learning", "V-trace: upper limit of the weights of the trace")
    gamma: Fraction = _setting(0.99, "learning", "discount factor")
    gae_lambda: Fraction = _setting(0.95, "learning", "lambda of generalized advantage estimation")
    learning_rate: NonNegativeFloat = _setting(3e-4, "learning", "Adam's learning rate at the start")
    lr_schedule: Literal["constant", "linear_decay", "kl_adaptive_minibatch", "kl_adaptive_epoch"] = _setting(
        "constant", "learning", "how the learning rate changes; linear_decay reaches 0 at train_for_env_steps"
    )
    lr_schedule_kl_threshold: PositiveFloat = _setting(
        0.008, "learning", "target KL divergence of the adaptive schedules"
    )
    lr_adaptive_min: PositiveFloat = _setting(
        1e-6, "learning", "lower limit of the learning rate in the adaptive schedules"
    )
    lr_adaptive_max: PositiveFloat = _setting(
        1e-2, "learning", "upper limit of the learning rate in the adaptive schedules"
    )
    adam_eps: PositiveFloat = _setting(1e-6, "learning", "Adam's epsilon")
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = _setting(0.9, "learning", "Adam's first momentum coefficient")
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = _setting(
        0.999, "learning", "Adam's second momentum coefficient"
    )
    max_grad_norm: NonNegativeFloat = _setting(
        0.5, "learning", "clip the norm of the gradient to this; 0 means no clipping"
    )
    ppo_objective: Literal["clip", "decoupled"] = _setting(
        "decoupled",
        "learning",
        "PPO's probability ratio and all KL divergences are from the policy that acted (clip), or from the policy "
        "before training on the dataset, and each sample is weighted by the probability of its action under that "
        "policy, divided by the one when acting (decoupled)",
    )
    behaviour_weight_cap: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = _setting(
        5.0, "learning", "decoupled objective: largest weight of a sample"
    )
    ppo_clip_ratio: PositiveFloat = _setting(0.2, "learning", "clip range of PPO's probability ratio")
    ppo_clip_mode: Literal["symmetric", "reciprocal"] = _setting(
        "symmetric", "learning", "clip the ratio to [1-c, 1+c] or to [1/(1+c), 1+c]"
    )
    ppo_clip_value: PositiveFloat | None = _setting(
        None, "learning", "clip the change of value predictions to this range; none means no clipping"
    )
    value_loss_coeff: NonNegativeFloat = _setting(0.5, "learning", "weight of the value loss")
    entropy_loss_coeff: NonNegativeFloat = _setting(0.0, "learning", "weight of the entropy bonus")
    kl_loss_coeff: NonNegativeFloat = _setting(
        0.0, "learning", "weight of the penalty on the KL divergence from the policy in the ratio (ppo_objective)"
    )
    target_kl: PositiveFloat | None = _setting(
        0.04,
        "learning",
        "leave out the other passes over a dataset after a pass with a larger mean of train/approx_kl; none means "
        "that all passes are made",
    )
    scale_lr: Literal["none", "linear", "sqrt"] = _setting(
        "none", "learning", "multiply learning_rate by the number of ranks that train together, or by its square root"
    )
    normalize_advantage: bool = _setting(
        True, "learning", "normalize advantages to mean 0 and standard deviation 1 before each pass"
    )
    normalize_advantage_over: Literal["minibatch", "dataset"] = _setting(
        "minibatch", "learning", "the samples that mean and standard deviation of advantages are taken over"
    )
    normalize_input: bool = _setting(True, "learning", "normalize observations with running statistics")
    normalize_returns: bool = _setting(
        True, "learning", "the critic predicts returns that are normalized with running statistics (PopArt)"
    )

    # Learning from a replay (SAC)
    replay_size: PositiveInt = _setting(1_000_000, "replay", "environment steps that the replay holds")
    save_replay: bool = _setting(
        False, "replay", "save the replay in the newest checkpoints; without it a resumed run starts with an empty one"
    )
    warmup_env_steps: PositiveInt = _setting(
        5_000, "replay", "environment steps before the first update, with uniformly random actions"
    )
    updates_per_env_step: PositiveFloat = _setting(
        1.0,
        "replay",
        "updates for each environment step after the warm-up; the learner or the workers wait to keep this ratio",
    )
    replay_ratio_tolerance: NonNegativeFloat = _setting(
        64.0,
        "replay",
        "async: how many updates the learner may fall behind, in addition to two steps of every environment",
    )
    n_step: PositiveInt = _setting(
        1, "replay", "number of rewards in a target before the bootstrap; fewer at an episode's end"
    )
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = _setting(
        0.005, "replay", "target critics move by this fraction towards the critics at each update"
    )
    ent_coef: PositiveFloat | Auto = _setting(
        "auto", "replay", "entropy coefficient; auto adapts it until the policy's entropy is target_entropy"
    )
    target_entropy: Annotated[float, Field(allow_inf_nan=False)] | Auto = _setting(
        "auto",
        "replay",
        "target entropy of ent_coef=auto in nats, of actions in [-1, 1]; auto is minus the number of continuous "
        "dimensions, plus half of the largest possible entropy of choices, of those that a mask allows",
    )
    policy_delay: PositiveInt = _setting(1, "replay", "updates of the critics for each update of the policy")
    critic_layer_norm: bool = _setting(False, "replay", "layer normalization in the critics")
    # The Hogwild backend
    hogwild_mode: Literal["auto", "shared", "synced", "gradients"] = _setting(
        "auto",
        "hogwild",
        "workers act with the shared parameters directly (shared), with a copy made before each rollout (synced), or "
        "with published parameters, sending gradients to a process that combines them (gradients); auto is synced for "
        "A2C and shared for SAC",
    )
    hogwild_optimizer: Literal["adam", "rmsprop"] = _setting(
        "adam", "hogwild", "optimizer of the shared parameters; its state is also shared"
    )
    num_gradients_to_combine: AutoPositiveInt = _setting(
        "auto", "hogwild", "gradients mode: number of gradients combined into one step; auto is the number of workers"
    )
    combine_gradients: Literal["mean", "sum"] = _setting(
        "mean", "hogwild", "gradients mode: how gradients are combined before clipping"
    )

    # Model
    encoder: str = _setting("default", "model", "name of a registered encoder")
    core: str = _setting("default", "model", "with use_rnn: name of a registered recurrent core")
    model: str = _setting("default", "model", "name of a registered model of actor and critic")
    image_channels: ImageChannels = _setting(
        "auto",
        "model",
        "position of the channels in observed arrays of three or four axes: before height and width (first) or after "
        "them (last). auto takes two neighbouring axes of equal size as height and width, otherwise the smaller of the "
        "first and the last axis as channels",
    )
    encoder_conv_architecture: Literal["auto", "nature", "impala"] = _setting(
        "auto",
        "model",
        "convolutions over images; auto is nature for images of at least 36 x 36 pixels, otherwise impala",
    )
    encoder_conv_mlp_layers: list[PositiveInt] = _setting(
        [512], "model", "widths of the hidden layers after the convolutions"
    )
    use_rnn: bool = _setting(False, "model", "make the policy recurrent: a recurrent core follows the encoder")
    rnn_type: Literal["gru", "lstm"] = _setting("gru", "model", "kind of recurrent core")
    rnn_size: PositiveInt = _setting(128, "model", "size of the recurrent state, in each layer")
    rnn_num_layers: PositiveInt = _setting(1, "model", "layers of the recurrent core")
    recurrence: AutoPositiveInt = _setting(
        "auto",
        "model",
        "steps of backpropagation through time; must divide rollout; auto is rollout",
    )
    encoder_mlp_layers: list[PositiveInt] = _setting([64, 64], "model", "widths of the hidden layers")
    nonlinearity: Literal["tanh", "relu", "elu"] = _setting("tanh", "model", "activation function")
    actor_critic_share_weights: bool = _setting(False, "model", "one network with two heads for actor and critic")
    policy_initialization: Literal["orthogonal", "torch_default"] = _setting(
        "orthogonal", "model", "initial weights of the network"
    )
    adaptive_stddev: bool = _setting(
        False, "model", "continuous actions: the standard deviation depends on the observation"
    )
    initial_stddev: PositiveFloat = _setting(
        0.6, "model", "continuous actions: standard deviation at the start, in the unit of action_unit"
    )
    action_unit: Literal["bounds", "raw"] = _setting(
        "bounds",
        "model",
        "continuous actions: the policy's -1 and 1 are the environment's bounds in each dimension where both bounds "
        "are finite (bounds), or the environment gets the policy's numbers unchanged (raw)",
    )
    squash_actions: bool = _setting(
        False, "model", "continuous actions: squash with tanh and rescale to the action bounds, which must be finite"
    )

    # Failures: processes that die or hang, environments that raise, NaN and infinity
    env_step_timeout: PositiveFloat = _setting(
        180.0,
        "supervision",
        "kill and restart a rollout worker that made no environment step for this many seconds, except while it "
        "waited for other processes",
    )
    max_restarts: Annotated[int, Field(ge=0)] = _setting(
        10, "supervision", "restarts of rollout and inference workers within restart_window_s; one more ends the run"
    )
    max_env_failures: Annotated[int, Field(ge=0)] = _setting(
        10,
        "supervision",
        "failures of environments of one worker within restart_window_s; one more ends the run. Before the run's first "
        "finished episode the first failure ends it",
    )
    restart_window_s: PositiveFloat = _setting(
        600.0,
        "supervision",
        "seconds during which restarts and failures are counted for max_restarts and max_env_failures",
    )
    max_learner_restarts: Annotated[int, Field(ge=0)] = _setting(
        0, "supervision", "how often the run resumes automatically from its last checkpoint after its learner died"
    )
    nan_policy: Literal["drop", "fail"] = _setting(
        "drop",
        "supervision",
        "on a step whose reward or observation is NaN or infinite: drop it and reset the environment, or fail the run",
    )
    max_skipped_steps: PositiveInt = _setting(
        10,
        "supervision",
        "end the run after this many optimizer steps in a row were skipped for NaN or infinity in loss or gradient",
    )

    # What is shown
    with_tensorboard: bool = _setting(True, "watching", "write TensorBoard event files")
    profile: bool = _setting(
        False, "watching", "show where each role's time goes: a table at the end and profile/* in the records"
    )
    quiet: bool = _setting(False, "watching", "print no progress")

    callbacks: list[str] = _setting(
        [],
        "watching",
        "observers of the run: names that packages have registered (entry points asyncrl.callbacks), or MODULE:Name",
    )

    @property
    def env_id(self) -> str:
        """The environment's id; of a callable MODULE:name, as an `EnvMaker` where that is not enough to import it."""
        assert isinstance(self.env, str)
        return self.env

    @property
    def preprocesses_atari(self) -> bool:
        """Whether the environment is an Atari game with the usual preprocessing."""
        return self.env_id.startswith("ALE/") and self.atari_preprocessing

    @property
    def frames_per_step(self) -> int:
        """Frames of a preprocessed game that pass with one environment step; 1 elsewhere."""
        return int(self.env_kwargs.get("frameskip", ATARI_FRAMESKIP)) if self.preprocesses_atari else 1

    @property
    def algorithm(self) -> Algorithm:
        """The record of `algo`."""
        return find_algorithm(self.algo, self.import_modules)

    @property
    def is_off_policy(self) -> bool:
        """Whether the algorithm learns from a replay."""
        return self.algorithm.collects == "replay"

    @property
    def rnn_state_size_of_core(self) -> int:
        """Numbers of one environment's state in one recurrent core."""
        return self.rnn_size * self.rnn_num_layers * (2 if self.rnn_type == "lstm" else 1)

    @property
    def squashes(self) -> bool:
        """Whether continuous actions are squashed to their bounds."""
        return self.squash_actions or self.algorithm.squashes_actions

    @property
    def action_mapping(self) -> ActionMapping:
        """How continuous actions become the environment's."""
        if self.squashes:
            return "squashed"
        return "rescaled" if self.action_unit == "bounds" else "raw"

    @property
    def best_metric(self) -> Literal["none", "eval", "train"]:
        """`save_best_metric`, resolved."""
        if self.save_best_metric != "auto":
            return self.save_best_metric
        return "train" if self.eval_every_env_steps is None else "eval"
