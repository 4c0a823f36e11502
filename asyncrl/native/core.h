/* What Python and the kernels agree on; `asyncrl/native/__init__.py` has the same records for ctypes.
 *
 * All arrays are float32 in row-major order, except the actions of a Categorical, which are int64. B is the number of
 * samples of a minibatch. */
#ifndef ASYNCRL_CORE_H
#define ASYNCRL_CORE_H

#include <stdint.h>

/* A linear layer with its gradient: weight [outputs, inputs], bias [outputs]. */
typedef struct {
    float *weight, *bias, *weight_gradient, *bias_gradient;
    int64_t inputs, outputs;
} Layer;

/* A perceptron over some columns of the observations: all from `first_column` on, or the listed `columns`. */
typedef struct {
    const Layer *layers;
    const int64_t *columns; /* NULL: inputs are contiguous */
    int64_t num_layers, first_column, num_inputs;
} Encoder;

enum { MOST_LAYERS = 16 }; /* of an encoder */
enum { EVALUATED_AT_ONCE = 64 }; /* samples; their features stay in the cache */
enum { TANH, RELU, ELU };
enum { GAUSSIAN, CATEGORICAL };
enum { PPO, A2C };

typedef struct {
    Encoder actor, critic;
    Layer policy_head, value_head;
    const float *log_std;      /* [A], a parameter; NULL: the second half of the policy head's outputs */
    float *log_std_gradient;
    int64_t has_critic;        /* 0: the critic reads the actor's features */
    int64_t activation, distribution;
    int64_t num_actions;       /* dimensions of a Gaussian's action, choices of a Categorical */
    int64_t mask_column;       /* first column of the mask of choices; -1: there is none */
    float lowest_log_std, highest_log_std, forbidden_logit;
} Model;

typedef struct {
    int64_t algorithm, needs_kl, clips_value;
    float clip_low, clip_high, value_clip;
    float value_coeff, entropy_coeff, kl_coeff;
} Loss;

typedef struct {
    int64_t num_samples, floats_stride, parameters_stride, action_stride;
    const float *floats;            /* [B, F], normalized observations */
    const void *action;             /* [B, A] float32, or [B] int64 */
    const float *action_parameters; /* [B, P], of the distribution that the policy is compared with */
    const float *log_prob, *advantage, *normalized_return, *normalized_value; /* [B] */
} Batch;

typedef struct {
    float *parameters, *gradient, *exp_avg, *exp_avg_sq; /* [num_parameters] */
    float *step;                                         /* [1], steps that were taken */
    int64_t num_parameters;
    double beta1, beta2, epsilon;
} Adam;

/* Observations that ask for actions, and where the answers go. */
typedef struct {
    int64_t num_rows, row_stride, num_floats;
    const float *obs;                  /* [B, F], raw */
    const float *obs_mean, *obs_std;   /* [F]; NULL: observations are not normalized */
    float obs_clip;
    const float *return_mean, *return_std; /* [1] */
    const float *noise;                /* [B, A] standard normal, or [B, A] exponential */
    void *action;                      /* [B, A] float32, or [B] int64 */
    float *log_prob, *value;           /* [B] */
    float *parameters;                 /* [B, P], of the distributions */
} Request;

typedef struct {
    const char *name;
    /* Floats of working memory that a minibatch of B samples needs. */
    int64_t (*scratch_size)(const Model *model, int64_t num_samples);
    /* Samples an action for each row. The scratch memory also holds the normalized observations [B, F] at its end. */
    void (*act)(const Model *, const Request *, float *scratch);
    /* Writes the parameters of the distributions [B, P] and the normalized values [B] of the observations of a batch;
     * the scratch memory is that of EVALUATED_AT_ONCE samples. */
    void (*evaluate)(const Model *, const Batch *, float *scratch, float *parameters, float *value);
    /* Writes the gradient of the loss; `metrics` [6] are loss, policy, value, entropy and KL loss, and KL;
     * `log_ratio` [B] the log-probability of each action minus that of the batch. */
    void (*gradient)(const Model *, const Loss *, const Batch *, float *scratch, float *metrics, float *log_ratio);
    /* Scales the gradient to `limit` if its norm is larger (0: never), and takes a step unless the norm or `loss` is not
     * finite. Returns the norm before. */
    float (*apply)(const Adam *, float learning_rate, float limit, float loss);
    /* Both in turn; `metrics` [7] has the norm at the end. */
    void (*step)(const Model *, const Loss *, const Batch *, const Adam *, float learning_rate, float limit,
                 float *scratch, float *metrics, float *log_ratio);
} Kernels;

#endif
