// Made by `python -m tools.console_types` from the server's OpenAPI document. Do not edit.

/** Work of one part of a run, or its wait. */
export interface Activity {
  /** the conductor, the trainer, the graders, or an engine by its name */
  who: string;
  /** what it does, or waits for */
  does: string;
  /** whether it waits */
  waits: boolean;
  /** UTC since when [ns]; None if the log does not say */
  since: number | null;
  /** query for the rows behind it */
  evidence: string;
  /** UTC at which the run fails if nothing happens until then [ns]; None: never */
  deadline: number | null;
  /** command that helps after the run was stopped, or while it is on; None: none */
  mend: string | null;
}

/** Advantage by the run's estimator. `first` and `last` differ only if the estimator discounts. */
export interface Advantage {
  /** name of the estimator */
  estimator: string;
  /** advantage of the first trained token */
  first: number;
  /** advantage of the last trained token */
  last: number;
  /** terms of the trainer that do not follow from rewards: `kl` (its penalty needs log-probs), and then `whitening`, which comes after it */
  left_out: string[];
}

/** One attempt of an agent at a rollout. */
export interface AgentSession {
  /** name, `<sample>.<attempt>` */
  session: string;
  /** id of the requested sample */
  sample: string;
  /** id of its group */
  group: string;
  /** run whose log has the session */
  run: string;
  /** index of the attempt, from 0 */
  attempt: number;
  /** source whose token the harness used */
  source: string;
  /** UTC [ns] */
  opened_at: number;
  /** UTC [ns]; None while it is open */
  sealed_at: number | null;
  /** why it ended; None while it is open */
  sealed: SealReason | null;
  /** exit code of the agent's program, if the harness gave one */
  exit_code: number | null;
  /** the harness' reward for all paths */
  reward: number | null;
  /** harness' rewards for single paths, by the turn that ended the path */
  rewards: Record<string, number>;
  /** rule that gives each token its weight in training */
  credit: Credit | null;
  /** factor per turn, if `credit` is `discounted` */
  discount: number;
  /** turns that have ended */
  turns: AgentTurn[];
  /** turns under way */
  open: OpenTurn[];
  /** turns that ended a path */
  leaves: number[];
  /** paths that became samples */
  paths: Path[];
  /** turns whose answers were lost, including turns that never ended */
  orphans: number[];
  /** why it gave no samples, one sentence */
  failure: string | null;
}

/** One turn. */
export interface AgentTurn {
  /** index of the turn in the session */
  turn: number;
  /** API that the agent called: chat, responses, messages, generate */
  dialect: string;
  /** name of the agent's HTTP client (User-Agent) */
  client: string;
  /** turn that it continues */
  extends: number | null;
  /** why it continues no turn; None if it extends one */
  root: RootReason | null;
  /** for a root: the turn with which it shares most tokens */
  nearest: number | null;
  /** for a root: index of the first token that differs from that turn's path */
  drift: number | null;
  /** rule that made the token ids of its prompt */
  rule: string;
  /** new tokens of its prompt */
  prompt: number;
  /** generated tokens */
  tokens: number;
  /** weight versions that generated them */
  versions: number[];
  /** how the generation ended */
  stop: StopReason | null;
  /** duration [s] */
  seconds: number;
  /** sample in which its tokens are trained on; None if they never are */
  sample: string | null;
  /** weight of each of these tokens */
  weight: number | null;
  /** its answer was lost and requested again */
  orphan: boolean;
}

/** Detectors that may raise an alarm while a run is on, with their findings. */
export interface Alarms {
  /** last position of the log that they include */
  position: number;
  /** number of graded training samples */
  graded: number;
  /** the detectors; one without findings is no alarm */
  detectors: Checked[];
  /** command that gives the same, for a shell */
  command: string;
}

/** Query and command that give the same as an answer. */
export interface AnswerSource {
  /** query that gives the same rows */
  sql: string;
  /** command that gives the same, for a shell */
  command: string;
  /** last position of the log that it includes */
  position: number;
}

/** Type and length of an array; its numbers are not in the answer. */
export interface Array {
  /** Type of the numbers. */
  dtype: string;
  /** Number of elements. */
  n: number;
  /** sha256 of the blob that holds them; absent if the event does. */
  blob?: string;
}

/** Open groups, and how many more may be opened. */
export interface Backpressure {
  /** number of groups that are neither rejected nor trained on */
  open: number;
  /** most open groups that the settings allow; None if unknown */
  room: number | null;
  /** number of open groups that are in no batch */
  unsealed: number;
  /** number of prompts from outside that wait for a place */
  prompts_waiting: number;
}

/** Quantiles and mean of a column of samples by step; null where no sample has a value. */
export interface Band {
  /** column of `samples` */
  name: string;
  /** what it is */
  title: string;
  /** unit; empty if it has none */
  unit: string;
  /** index in `steps` of each value; null if there is one per step */
  at: number[] | null;
  /** p10, p50, p90 and mean over the samples of the step's batch */
  trained: Record<string, (number | null)[]>;
  /** the same over all completed samples */
  all: Record<string, (number | null)[]>;
}

/** A bar of a histogram. */
export interface Bar {
  /** the value; for a bar of numbers its lower end, which it includes */
  low: string | number | boolean | null;
  /** upper end, which it excludes; None for a bar of one value */
  high: number | null;
  /** number of samples under all filters */
  count: number;
}

/** Figures of a batch in one run. */
export interface BatchFigures {
  /** number of samples */
  samples: number;
  /** rewards as graded; None without samples */
  rewards: Distribution | null;
  /** response lengths [tokens]; None without samples */
  lengths: Distribution | null;
}

/** A group of the batch. */
export interface BatchGroup {
  /** id of the group */
  group: string;
  /** `train`, `inbox`, or the name of the evaluation; empty if the prompt is unknown */
  dataset: string;
  /** label of the prompt: a text or another JSON value */
  label: string | unknown | null;
  /** rewards as graded, by sample */
  rewards: number[];
}

/** A sample of the batch. */
export interface BatchSample {
  /** id of the sample */
  sample: string;
  /** id of its group */
  group: string;
  /** reward as graded */
  reward: number;
  /** reward that is trained on */
  normalised: number;
  /** response length [tokens] */
  length: number;
  /** why its rollout ended */
  stop: StopReason | null;
  /** weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]` */
  versions: string;
  /** sha256 (hex) of its tokens and log-probs */
  digest: string;
}

/** A payload in the blob store, named by its content. */
export interface BlobRef {
  /** sha256 (hex) of the payload. */
  sha256: string;
  /** Size of the payload, in bytes. */
  size: number;
}

/** Branch point: weights `version` of another run. The parent's log up to `position` is this run's past too. */
export interface Branched {
  /** Name of the parent run. */
  run: string;
  /** Path of the parent's folder, or URL of its archive. */
  where: string;
  /** Last log position of the parent that belongs to this run's past. */
  position: number;
  /** Weight version of the parent. */
  version: number;
  /** sha256 (hex) of the parent's weights at that version. */
  weights_digest: string;
  /** sha256 (hex) of its optimizer state; empty: optimizer and critic start anew. */
  optimizer_digest: string;
  /** By source: the first prompt that the parent had not finished. This run draws from that prompt on. */
  cursors: Record<string, number>;
  /** By source: later prompts that the parent had trained or rejected. This run does not draw them again. */
  passed: Record<string, number[]>;
  /** The run generates nothing: its batches consist of the parent's rollouts, also of those after `position`. */
  follows: boolean;
  /** File with a follower's overrides (samples dropped or graded differently), in this run's blob store. */
  changes: BlobRef | null;
  /** The parent's draw statistics, for samplers that use them. */
  draws?: DrawnBefore[];
  /** sha256 (hex) of the parent's critic state; empty without a critic. */
  critic_digest: string;
}

/** Names of ours; what is empty stays as in the run. */
export interface BuiltInChange {
  /** grader, as --rm-type takes it; empty: the recorded rewards */
  reward: string;
  /** filter of groups; empty: that of the run */
  filter: string;
  /** advantage estimator; empty: that of the run */
  estimator: string;
}

/** A value at the two moments; as JSON, a list of both. */
export type Change_GroupProgress_ = [GroupProgress, GroupProgress];

/** A value at the two moments; as JSON, a list of both. */
export type Change_int___None_ = [number | null, number | null];

/** A value at the two moments; as JSON, a list of both. */
export type Change_str___int___None_ = [string | number | null, string | number | null];

/** A detector and its findings. */
export interface Checked {
  /** name of the detector, and of its view in SQL */
  name: string;
  /** `alarm` or `warning` */
  severity: Severity;
  /** what it finds, one sentence */
  finds: string;
  /** query for its findings */
  sql: string;
  /** whether it needs a second grader, which the query alone has not */
  compares_graders: boolean;
  /** its thresholds */
  parameters: Record<string, number>;
  /** its findings, column to value */
  findings: (Record<string, string | number | string[] | null>)[];
}

/** Appended by the trainer when the files are complete. */
export interface CheckpointSaved {
  type: "checkpoint.saved";
  /** Weight version in the checkpoint. */
  version: number;
  /** Folder of the checkpoint. */
  url: string;
  /** sha256 (hex) of the weights, as in `step.committed`. */
  weights_digest: string;
  /** sha256 (hex) of the optimizer's state, as in `step.committed`. */
  optimizer_digest: string;
  /** Seconds that saving took. */
  seconds: number;
  /** sha256 (hex) of the critic's state, as in `step.committed`. */
  critic_digest: string;
}

/** Tokens that the log got at one time. */
export interface Chunk {
  /** index of the first response token */
  start: number;
  /** index after the last response token */
  end: number;
  /** UTC of the event [ns]; for tokens between two turns, of the beginning of the next turn */
  at: number;
  /** UTC at which their generation began [ns], `at` if they were not generated; None if unknown */
  since: number | null;
}

/** The last weights that two runs share, under their version number in each run. */
export interface CommonVersion {
  /** Version in this run. */
  here: number;
  /** Version in the other run; it has the same digest. */
  there: number;
}

/** A comparison of two runs. */
export interface ComparePage {
  /** the first difference, and the steps */
  comparison: Comparison;
  /** last position of the log of run A that it includes */
  a_position: number;
  /** last position of the log of run B that it includes */
  b_position: number;
  /** command that gives the same, for a shell */
  command: string;
  /** query that gives the distributions of the steps, in each of the two runs */
  sql: string;
}

/** One of the two runs. */
export interface ComparedRun {
  /** name of the run */
  run: string;
  /** folder, or URL of the archive */
  where: string;
  /** first step with a batch; None if it has none */
  first_step: number | null;
  /** last step with a batch; None if it has none */
  last_step: number | null;
}

/** Comparison of two runs. */
export interface Comparison {
  /** run A */
  a: ComparedRun;
  /** run B */
  b: ComparedRun;
  /** settings, versions of packages and machine facts that differ */
  settings: Input[];
  /** first difference; None if the runs are equal in what both have */
  first: Difference | null;
  /** steps that both runs have a batch of */
  steps: StepComparison[];
}

/** Totals since the start of the run. Groups and samples are those of training unless the field says otherwise. */
export interface Counts {
  /** prompts taken into the run */
  prompts_submitted: number;
  /** prompts that could not be used */
  prompts_rejected: number;
  /** groups whose rollouts were requested */
  groups_requested: number;
  /** groups accepted by the filter */
  groups_accepted: number;
  /** groups rejected, for any cause */
  groups_rejected: number;
  /** groups trained on */
  groups_trained: number;
  /** training rollouts that ended */
  samples_completed: number;
  /** rollouts that failed, evaluations included */
  samples_failed: number;
  /** suspensions of rollouts at step boundaries */
  suspensions: number;
  /** samples whose grading failed, evaluations included */
  rewards_failed: number;
  /** response tokens of training rollouts that ended */
  response_tokens: number;
  /** rollouts of evaluations that ended */
  eval_samples: number;
  /** checkpoints saved */
  checkpoints: number;
  /** archive segments sealed */
  segments: number;
}

/** Which turns of a session are trained on. `all`: all paths. `last`: the last turn of each path. `leaf`: the path that ended last. `discounted`: all paths, and earlier turns of a path count less. */
export type Credit = "all" | "discounted" | "last" | "leaf";

/** Effect of the credit rule on agents' sessions in accepted groups. */
export interface Credits {
  /** sessions to which the rule was applied, in all groups */
  sessions: number;
  /** the rule */
  rule: string;
  /** trained tokens in the run */
  tokens_before: number;
  /** trained tokens under the rule */
  tokens_after: number;
  /** samples that train on other tokens, or on the same with other weights */
  samples_changed: number;
  /** paths that are samples in the run only */
  samples_gone: number;
  /** paths that are samples under the rule only */
  samples_new: number;
}

/** Decision whether a group is trained on. */
export interface Decision {
  /** the group is trained on */
  accepted: boolean;
  /** why it was rejected; None if it was accepted */
  cause: RejectionCause | null;
  /** reason that the filter gave, or why the group was rejected */
  reason: string | null;
  /** path of the filter; `none` if the run has none */
  filter: string;
  /** sha256 (hex) of the filter's source */
  filter_digest: string;
  /** statistics of the rewards at the decision */
  figures: Record<string, number>;
  /** rewards as graded, by sample */
  rewards: number[];
  /** UTC of the decision [ns] */
  at: number;
}

/** A difference of two runs. */
export interface Difference {
  /** part of the step that differs */
  kind: Kind;
  /** differing field of this part, such as `text`, `token`, `log_prob` or `weights_digest` */
  field: string;
  /** step whose batch or decisions it belongs to; None: the weights before the first */
  step: number | null;
  /** id of the group, if it is about one */
  group: string | null;
  /** id of the sample, if it is about one */
  sample: string | null;
  /** place in the response [tokens] or in the batch [samples], from 0 */
  index: number | null;
  /** value in run A; None if it has none */
  a: string | number | boolean | null;
  /** value in run B; None if it has none */
  b: string | number | boolean | null;
  /** position of the event in the log of run A */
  a_position: number | null;
  /** position of the event in the log of run B */
  b_position: number | null;
  /** values that it was computed from, equal ones too */
  inputs: Input[];
}

/** Distribution of a figure over the samples of a batch. */
export interface Distribution {
  /** mean */
  mean: number;
  /** standard deviation */
  std: number;
  /** 10th percentile */
  p10: number;
  /** median */
  p50: number;
  /** 90th percentile */
  p90: number;
}

/** Draw statistics of one prompt source that a branched run inherits: one entry per prompt that the parent drew. */
export interface DrawnBefore {
  /** Path of the source. */
  path: string;
  /** int32 [prompts]: row of each prompt. */
  rows: Array;
  /** int32 [prompts]: how often it was drawn. */
  times: Array;
  /** int32 [prompts]: weight version at its last draw. */
  versions: Array;
  /** float32 [prompts]: passed answers of its groups; each older group counts half as much as the next. */
  passed: Array;
  /** float32 [prompts]: answers of its groups, weighted as `passed`. */
  answers: Array;
  /** int8 [prompts]: 1 if the prompt is unusable. */
  refused: Array;
}

/** An engine. */
export interface EngineView {
  /** name of the worker */
  engine: string;
  /** weight version that it runs; None before the first */
  version: number | null;
  /** rollouts that it generates */
  rollouts: OpenRollout[];
}

/** Appended by the conductor when each sample of an evaluation has its reward or has failed. If a user's evaluation function made the evaluation, its process appends the event, and the log holds no rollouts of the evaluation except the generations that the function requested from engines. */
export interface EvalCompleted {
  type: "eval.completed";
  /** Name of the data set, from --eval-prompt-data or --eval-config. */
  dataset: string;
  /** Weight version that is evaluated. */
  version: number;
  /** Mean reward; failed samples count as 0. */
  mean: number;
  /** Number of samples. */
  samples: number;
  /** Number of failed samples. */
  failed: number;
  /** Mean response length, in tokens. */
  mean_length: number;
  /** Oldest weight version that generated a token; equal to `version` unless --eval-on is latest. */
  oldest_version: number;
  /** Newest weight version that generated a token; equal to `version` unless --eval-on is latest. */
  newest_version: number;
  /** Unbiased estimates of `pass@1`, `pass@2`, `pass@4`, ... up to the samples per question, if there are at least two. A reward of exactly 1 is a pass. Empty in older logs. */
  pass_rates: Record<string, number>;
  /** User's function that logged the evaluation, as in `batch.sealed`. */
  log_function: string;
  /** User's functions, as in `batch.sealed`. */
  functions: Record<string, string>;
  /** User's evaluation function that made the evaluation; empty if there is none. */
  function: string;
  /** Rewards that `function` returned, in its order. */
  rewards: number[];
  /** Truncation flags that `function` returned, in its order. */
  truncated: boolean[];
}

/** Mean of an evaluation, as recorded and as it would be. */
export interface Evaluation {
  /** name of the data set */
  dataset: string;
  /** evaluated weight version */
  version: number;
  /** recorded mean */
  before: number;
  /** mean that it would have */
  after: number;
}

/** The histogram of a column. */
export interface Facet {
  /** column of `samples` */
  column: string;
  /** whether its values are numbers */
  has_numbers: boolean;
  /** number of different values */
  values: number;
  /** its bars; of texts the most frequent */
  bars: Bar[];
}

/** Histograms of the samples under all filters. */
export interface Facets {
  /** number of samples under all filters */
  total: number;
  /** a histogram per column with more than one value */
  facets: Facet[];
  /** query for the samples that are counted */
  source: AnswerSource;
}

/** Why a rollout failed. `aborted`: a rollout function cancelled the generation. `agent`: the agent's session gave no sample, and another session may be opened. */
export type FailureKind = "aborted" | "agent" | "engine" | "invalid" | "too_long";

/** Whether a state is equal to the committed state, bit for bit. */
export type Fidelity = "approximate" | "exact";

/** The verdict of another filter on a group, with the rewards as recorded. */
export interface FilterTrial {
  /** name of the filter */
  filter: string;
  /** the group would be trained on */
  accepted: boolean;
  /** reason that the filter gives, or why the group is rejected without it */
  reason: string | null;
  /** the recorded decision was the opposite */
  differs: boolean;
  /** it was rejected whatever a filter decides: a rollout failed, or it was too stale */
  beyond: boolean;
  /** the filter drops the group only while others fill the step: then it decides as recorded */
  fallback: boolean;
}

/** A group whose verdict would flip. */
export interface FlippedGroup {
  /** id of the group */
  group: string;
  /** recorded rewards; None if grading failed */
  before: (number | null)[];
  /** rewards that it would have; None if grading fails */
  after: (number | null)[];
  /** reason of the new verdict */
  reason: string | null;
  /** step whose batch has it; for a group accepted now, the next step at that moment */
  step: number;
}

/** Open groups that differ. */
export interface GroupChanges {
  /** groups that are open at the later moment alone: stage there by id */
  opened: Record<string, GroupPhase>;
  /** groups that are open at the earlier moment alone: fate by id (`trained`, `rejected`, `evaluated`, or `trained or rejected` if the verdict is no longer known) */
  closed: Record<string, string>;
  /** groups that are open at both, with other progress, by id */
  moved: Record<string, Change_GroupProgress_>;
}

/** A group. */
export interface GroupPage {
  /** the group */
  group: GroupView;
  /** filters that can be tried on it; empty if the group has no decision */
  filters: string[];
  /** command and query for it */
  source: AnswerSource;
}

/** Stage of a group. Trained and rejected groups leave the state and remain only in its counts. */
export type GroupPhase = "accepted" | "requested" | "sealed" | "submitted";

/** Progress of an open group at one moment. */
export interface GroupProgress {
  /** stage of the group */
  phase: GroupPhase;
  /** number of its samples by stage */
  samples: Record<string, number>;
  /** response tokens of all its samples so far */
  tokens: number;
}

/** A sample of the group. */
export interface GroupSample {
  /** id of the sample */
  sample: string;
  /** reward as graded; None until then, and if grading failed */
  reward: number | null;
  /** response length so far [tokens] */
  length: number;
  /** why its rollout ended; None until then */
  stop: StopReason | null;
  /** weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]` */
  versions: string;
  /** number of requests of its rollout */
  attempts: number;
  /** text of the response; empty until the rollout has ended */
  text: string;
  /** why its grading, or its newest attempt, failed; None without a failure */
  failure: string | null;
}

/** A prompt and its samples. */
export interface GroupView {
  /** id of the group */
  group: string;
  /** UTC of the prompt [ns]; None if the prompt is unknown */
  submitted_at: number | null;
  /** worker that submitted the prompt */
  submitted_by: string | null;
  /** the prompt, without the numbers of its token ids */
  prompt: PromptSubmitted | null;
  /** samples in index order */
  samples: GroupSample[];
  /** agents' sessions that made the samples */
  sessions: AgentSession[];
  /** decision whether it is trained on; None if there is none yet */
  decision: Decision | null;
  /** step whose batch has the group */
  step: number | null;
  /** weight version that the step made; None until the commit */
  version: number | null;
}

/** A time in which a worker had no work. */
export interface Idle {
  /** index of its lane */
  lane: number;
  /** its begin [s] */
  start: number;
  /** its end [s] */
  end: number;
  /** what it waited for, in words */
  waited_for: string;
}

/** A value of both runs: a setting, or something that a part of a step was computed from. */
export interface Input {
  /** name of the value */
  name: string;
  /** value in run A; None if it has none */
  a: string | number | boolean | null;
  /** value in run B; None if it has none */
  b: string | number | boolean | null;
}

/** A run of an ancestry. The last four fields are set for a branch. */
export interface JoinedRun {
  /** name of the run */
  run: string;
  /** folder or URL that the run is opened with */
  where: string;
  /** run that it branched off from */
  parent: string | null;
  /** weight version at which it branched off */
  version: number | null;
  /** position in the parent's log */
  position: number | null;
  /** whether it is trained on its parent's rollouts */
  follows: boolean;
}

/** Part of a step that differs, in the order in which one follows from another. */
export type Kind = "batch" | "decision" | "digest" | "gradient_norm" | "prompt" | "reward" | "tokens";

/** A lane. */
export interface LaneHead {
  /** role of its worker, or `waiting` */
  role: string;
  /** worker, or the kind of wait */
  name: string;
  /** name for people */
  title: string;
  /** most intervals at once in the whole run */
  depth: number;
  /** number of its intervals in the window */
  intervals: number;
  /** time of the window with at least one interval [s] */
  busy: number;
  /** whether its intervals are merged to cells */
  dense: boolean;
}

/** A figure by step. */
export interface Line {
  /** name in `metrics` of the table `steps`, or of a share */
  name: string;
  /** unit; empty if it has none */
  unit: string;
  /** index in `steps` of each value; null if there is one per step */
  at: number[] | null;
  /** its values */
  values: (number | null)[];
}

/** A run in the list. */
export interface ListedRun {
  /** name in the console's URLs */
  run: string;
  /** None if the run cannot be read */
  status: RunStatus | null;
  /** number of committed steps; None if the run cannot be read */
  steps: number | null;
  /** number of steps that the run trains in all; None if unknown */
  target: number | null;
  /** time of the last event, UTC [s since 1970] */
  at: number | null;
  /** why the run failed, or why it cannot be read; empty if neither */
  reason: string;
}

/** An event of the log, without its fields. */
export interface LogEvent {
  /** position of the event */
  position: number;
  /** UTC [ns] */
  at: number;
  /** type, such as `rollout.completed` */
  type: string;
  /** id of its subject: a sample, a group, a step, a version, a worker */
  entity: string;
  /** worker that appended it */
  producer: string;
}

/** Curves of a run. Each value is that of one step. If the window has more steps than `points`, each curve has those of its lowest and highest values in equal parts of the window. */
export interface Metrics {
  /** number of steps in the window */
  total: number;
  /** most points of a curve */
  points: number;
  /** steps that have a point, ascending */
  steps: number[];
  /** time of the commit since the run's first sample [s]; null before the commit */
  seconds: (number | null)[];
  /** tokens of prompts and responses trained on up to the step; null before the commit */
  trained_tokens: (number | null)[];
  /** quantiles and means over samples */
  bands: Band[];
  /** figures of groups and of the trainer */
  lines: Line[];
  /** query for the bands */
  source: AnswerSource;
  /** query for the trainer's figures */
  steps_source: AnswerSource;
}

/** Difference between two moments: counters as the increase, all else as old and new value. */
export interface MomentDiff {
  /** name of the run */
  run: string;
  /** the earlier moment */
  from: PointInTime;
  /** the later moment */
  to: PointInTime;
  /** number of events between them */
  events: number;
  /** time between them [s] */
  seconds: number;
  /** changed fields of `MomentView`, by name */
  changed: Record<string, Change_str___int___None_>;
  /** changed fields of `Backpressure`, by name */
  backpressure: Record<string, Change_int___None_>;
  /** increase of the totals that changed, by name */
  counts: Record<string, number>;
  /** number of groups rejected between them, by cause */
  rejections: Record<string, number>;
  /** changed number of prompts drawn, by source */
  cursors: Record<string, Change_int___None_>;
  /** changed weight version by engine; None if it has none or is gone */
  engines: Record<string, Change_int___None_>;
  /** open groups that differ */
  groups: GroupChanges;
  /** decisions between them, the oldest first */
  decisions: RunDecision[];
  /** number of verdicts between them that the later moment no longer has */
  verdicts_left_out: number;
}

/** A run at one position of its log. */
export interface MomentPage {
  /** the run there, with its newest decisions */
  moment: MomentView;
  /** the last events up to the position, the oldest first */
  events: LogEvent[];
  /** what differs at the other position; None without one */
  difference: MomentDiff | null;
  /** command for the difference, and query for the events between */
  difference_source: AnswerSource | null;
  /** command for the moment, and query for the events */
  source: AnswerSource;
}

/** A run at one position of its log. */
export interface MomentView {
  /** name of the run */
  run: string;
  /** position of the last event that counts */
  position: number;
  /** last position of the log */
  end: number;
  /** UTC of the event at `position` [ns] */
  at: number;
  /** time since the first event [s] */
  seconds: number;
  /** new, running, finished or failed; killed or unended if no launcher ran it then */
  phase: string;
  /** why the run failed; empty if it did not */
  failure: string;
  /** what the conductor waits for, in words; None if the run is not running */
  waits_for: string | null;
  /** number of committed steps */
  steps: number;
  /** number of steps that are planned; None if unknown */
  steps_wanted: number | null;
  /** newest weight version */
  version: number;
  /** newest published weight version */
  published: number;
  /** sha256 (hex) of the newest weights */
  weights_digest: string;
  /** open groups, and how many more may be opened */
  backpressure: Backpressure;
  /** versions by which the open groups are behind */
  staleness: Staleness;
  /** engines by name, with the rollouts that they generate */
  engines: EngineView[];
  /** rollouts that no engine has begun */
  queued: OpenRollout[];
  /** open groups */
  groups: OpenGroup[];
  /** batches that are being trained on or wait for it */
  sealed: SealedBatch[];
  /** evaluations under way */
  evals: OpenEval[];
  /** latest decisions, the oldest first */
  decisions: RunDecision[];
  /** role by worker */
  workers: Record<string, string>;
  /** number of prompts drawn by source */
  cursors: Record<string, number>;
  /** totals since the start */
  counts: Counts;
  /** number of rejected groups by cause */
  rejections: Record<string, number>;
}

/** The unit that the loss averages. */
export type Normalisation = "own" | "rollouts" | "tokens";

/** A run at the end of its log. */
export interface NowPage {
  /** status of the run */
  status: RunStatus;
  /** what the status means, and what to do */
  meaning: string;
  /** why the run failed; empty if it did not */
  failure: string;
  /** command that continues the run; None if there is nothing to continue */
  mend: string | null;
  /** last position of the log */
  position: number;
  /** UTC of the last event [ns] */
  at: number;
  /** UTC to which times are counted [ns]: now if the run is on, else that of the last event */
  now: number;
  /** what the run waits for; None if it is not running */
  waits_for: string | null;
  /** number of committed steps */
  steps: number;
  /** number of steps that are planned; None if unknown */
  steps_wanted: number | null;
  /** newest weight version */
  version: number;
  /** number of groups that are neither rejected nor trained on */
  open_groups: number;
  /** most open groups that the settings allow; None if unknown */
  room: number | null;
  /** number of open groups by the versions that they are behind */
  behind: Record<string, number>;
  /** most versions that they may be behind; None if unknown */
  staleness_bound: number | null;
  /** who does what; empty if the run is not running */
  activities: Activity[];
  /** role by worker, for workers that joined and were not lost */
  workers: Record<string, string>;
  /** newest decisions, the newest first */
  decisions: RunDecision[];
  /** command and query for it */
  source: AnswerSource;
}

/** An evaluation that has not ended. */
export interface OpenEval {
  /** name of the evaluation */
  dataset: string;
  /** weight version that it measures */
  version: number;
  /** number of its groups */
  groups: number;
}

/** A group that is neither rejected nor trained on, nor evaluated. */
export interface OpenGroup {
  /** id of the group */
  group: string;
  /** training, or an evaluation */
  purpose: Purpose;
  /** `train`, `inbox`, or the name of the evaluation */
  dataset: string;
  /** stage of the group */
  phase: GroupPhase;
  /** number of its samples by stage */
  samples: Record<string, number>;
  /** response tokens of all its samples so far */
  tokens: number;
  /** rewards as graded, of the samples that have one */
  rewards: number[];
  /** time since its first request [s]; None before it */
  seconds: number | null;
  /** weights at its request, or that an evaluation measures; -1 before its request */
  version: number;
  /** oldest weights of its tokens, or that they may get; None without samples */
  oldest: number | null;
  /** versions from `oldest` to the first step that can train it; None if none can */
  behind: number | null;
}

/** A rollout that has not ended. */
export interface OpenRollout {
  /** id of the sample */
  sample: string;
  /** engine that generates it, or will; None if unknown */
  engine: string | null;
  /** its generation has begun, by the log so far or by a later record of the engine */
  begun: boolean;
  /** only the log after the moment names the engine */
  said_later: boolean;
  /** response length so far [tokens] */
  tokens: number;
  /** oldest weight version of its tokens; None without tokens */
  oldest: number | null;
  /** newest weight version of its tokens; None without tokens */
  newest: number | null;
  /** oldest weights that its request allows */
  min_version: number;
  /** index of the attempt, from 0 */
  attempt: number;
  /** time since its request [s]; below 0 if writers' clocks differ */
  seconds: number;
}

/** A turn that has begun and not ended. */
export interface OpenTurn {
  /** index of the turn in the session */
  turn: number;
  /** UTC [ns] */
  begun_at: number;
}

/** Recorded rollout that a sample reuses. */
export interface Origin {
  /** Run that recorded it. */
  run: string;
  /** Sample in that run. */
  sample: string;
  /** Position of its `rollout.completed` in that run's log. */
  position: number;
  /** Spans over the response, with weight versions of that run. */
  spans: WeightSpan[];
}

/** Turns of one sample, from a root to the turn that ended the path. */
export interface Path {
  /** id of the sample */
  sample: string;
  /** indices of the turns */
  turns: number[];
}

/** One of the two moments. */
export interface PointInTime {
  /** position in the log */
  position: number;
  /** UTC of its event [ns] */
  at: number;
}

/** Positions that a reader may look for. */
export interface PositionList {
  /** last position of the log */
  end: number;
  /** committed steps [n] */
  steps: number[];
  /** position of the commit of each [n] */
  positions: number[];
  /** command and query for them */
  source: AnswerSource;
}

/** Appended once per group: by the prompt source (files), the inbox (producers) or the conductor (evaluation). */
export interface PromptSubmitted {
  type: "prompt.submitted";
  /** Id of the group of samples that answer the prompt. */
  group: string;
  /** Prompt after the chat template, as the model reads it. */
  text: string;
  /** int32 [prompt]: token ids of `text`. */
  tokens: Array;
  /** Origin of the prompt. */
  source: Source;
  /** Use of the rollouts. */
  purpose: Purpose;
  /** `train`, `inbox`, or the name of the evaluation. */
  dataset: string;
  /** Weight version to evaluate; None in training. */
  version: number | null;
  /** Chat from which `text` was made. */
  messages: (Record<string, unknown>)[] | null;
  /** Label: a text or another JSON value. */
  label: string | unknown | null;
  /** JSON value; an object unless the producer or the file contains another type. */
  metadata: unknown;
  /** Tool definitions, JSON. */
  tools: (Record<string, unknown>)[] | null;
  /** Recorded rollouts of another run that the group reuses, made from the same prompt. */
  recalled: Recalled | null;
  /** Functions see the messages: the file has messages and --apply-chat-template is off. `text` and `tokens` use the model's template regardless. */
  chat: boolean;
  /** User's function that makes the rollouts, set by a data source or data set; empty: the run's own. */
  generate_function_path: string;
  /** User's function that grades the rollouts, set by a data source or data set; empty: the run's own. */
  custom_rm_path: string;
  /** Prompt from outside: source whose share of the batches (`--source-share`) it counts towards. */
  share: string;
  /** Priority among the waiting prompts of that source; the highest is first. */
  priority: number;
  /** Attributes that a data source set on slime's `Sample` beyond its fields, JSON values; functions see them. */
  attributes: Record<string, unknown>;
}

/** Use of a prompt and its rollouts. `call`: a generation that a rollout function or an agent requested. */
export type Purpose = "call" | "eval" | "train";

/** Rows of a query. */
export interface QueryPage {
  /** names of the columns, in order */
  names: string[];
  /** an array per column [rows]; lists and maps as JSON, long texts shortened */
  columns: ((string | number | boolean | null)[])[];
  /** whether these are all rows */
  is_whole: boolean;
  /** query and command for it */
  source: AnswerSource;
}

/** The recorded group whose rollouts a prompt reuses. The prompt's source names the group. */
export interface Recalled {
  /** Run that recorded the rollouts. */
  run: string;
  /** Ids of the samples in that run, in index order. */
  samples: string[];
  /** Maps weight versions of that run to versions of this run. */
  common: CommonVersion;
  /** Version of this run that the oldest weights of the rollouts count as. */
  oldest: number;
  /** Optimizer steps that the rollouts may be behind the weights that they train. */
  bound: number;
}

/** A sample that is graded differently. */
export interface Regraded {
  /** id of the sample */
  sample: string;
  /** recorded reward; None if grading failed */
  before: number | null;
  /** reward that it would have; None if grading fails */
  after: number | null;
  /** why grading fails */
  failure: string;
}

/** Why a group was rejected. */
export type RejectionCause = "filter" | "filter_raised" | "not_returned" | "reward_failed" | "rollout_failed" | "stale";

/** Comparison of a run with a change. */
export interface Report {
  /** name of the run */
  run: string;
  /** folder or URL that it was opened with */
  where: string;
  /** changed settings, `name before -> after` */
  changed: string[];
  /** whether samples were graded again */
  regraded: boolean;
  /** recorded graders: name, digest, number of samples */
  graders_before: ([string, string, number])[];
  /** new graders: name, digest, number of samples */
  graders_after: ([string, string, number])[];
  /** path of the run's filter, or `none` */
  filter_before: string;
  /** path of the change's filter, or `none` */
  filter_after: string;
  /** number of events in the log */
  events: number;
  /** counts of samples */
  samples: RescoredSamples;
  /** counts of groups */
  groups: RescoredGroups;
  /** recorded rewards */
  rewards_before: RewardHistogram;
  /** rewards that there would be */
  rewards_after: RewardHistogram;
  /** sealed steps */
  steps: RescoredStep[];
  /** evaluations */
  evaluations: Evaluation[];
  /** batches whose normalised rewards do not follow from the settings */
  mismatched: number;
  /** whether advantages leave out a KL penalty, which the log does not hold */
  without_kl: boolean;
  /** whether advantages leave out a critic's values (not in the log) */
  without_critic: boolean;
  /** whether the credit rule was applied to agents' sessions */
  recredited: boolean;
  /** effect of the credit rule */
  credit?: Credits;
}

/** A request of the rollout. */
export interface Request {
  /** 0, and 1 more after each failure or suspension */
  attempt: number;
  /** UTC [ns] */
  at: number;
  /** seed of the generation */
  seed: number;
  /** oldest weights with which the engine may start */
  min_version: number;
  /** use of the rollout */
  purpose: Purpose;
  /** sampling parameters */
  sampling: Sampling;
}

/** Names that a run can be rescored with. */
export interface RescoreChoices {
  /** graders of ours */
  rewards: string[];
  /** filters of ours */
  filters: string[];
  /** advantage estimators */
  estimators: string[];
  /** names that the run has; a function of the user's by its path */
  run: BuiltInChange;
}

/** The choices, and a result. */
export interface RescorePage {
  choices: RescoreChoices;
  /** what would differ; None while nothing is chosen */
  report: Report | null;
  /** nothing would differ */
  same: boolean;
  /** the first step that would differ; None if none would */
  first_difference: number | null;
  /** command that gives the same, for a shell */
  command: string;
  /** query of the recorded rewards */
  sql: string;
  /** last position of the log that it includes */
  position: number;
}

/** Counts of decided training groups. */
export interface RescoredGroups {
  /** decided groups */
  decided: number;
  /** groups accepted in the run */
  accepted_before: number;
  /** groups that would be accepted */
  accepted_after: number;
  /** groups rejected for a failed rollout or staleness, regardless of rewards */
  beyond: number;
  /** groups that the filter drops only if others fill the step: verdicts stay */
  by_fallback: number;
  /** groups without a verdict in the log */
  undecided: number;
  /** accepted groups that would be rejected */
  rejected_now: number;
  /** rejected groups that would be accepted */
  accepted_now: number;
  /** the first of the former */
  rejected_examples: FlippedGroup[];
  /** the first of the latter */
  accepted_examples: FlippedGroup[];
}

/** Counts of training samples. */
export interface RescoredSamples {
  /** graded samples */
  graded: number;
  /** samples with another outcome: a different reward, or one gained or lost */
  changed: number;
  /** samples whose grading failed in the run */
  failed_before: number;
  /** grading failures now, by kind */
  failed?: unknown;
  /** the first of those that changed */
  examples: Regraded[];
}

/** Comparison of a sealed step. */
export interface RescoredStep {
  /** number of the step */
  step: number;
  /** samples in its batch */
  samples: number;
  /** samples of the groups that stay */
  samples_after: number;
  /** its groups that would not be accepted */
  lost: number;
  /** groups that would be accepted while it was the next step */
  offered: number;
  /** samples of the groups that stay whose advantage changes */
  advantages: number;
  /** Kish's effective sample size of the batch's advantage weights */
  ess_before: number;
  /** the same for the groups that stay */
  ess_after: number;
  /** samples whose trained tokens, or their weights, change */
  tokens: number;
}

/** Appended by the grader, once per completed sample. If the rule takes no time, or the generate function graded the sample, the engine appends the event together with `rollout.completed`. */
export interface RewardAssigned {
  type: "reward.assigned";
  /** Id of the sample. */
  sample: string;
  /** Group of the sample. */
  group: string;
  /** Reward that is trained on. */
  value: number;
  /** Name or path of the grader. */
  grader: string;
  /** sha256 (hex) of the grader's source. */
  grader_digest: string;
  /** Dict that the grader returned, if it returned one. */
  detail: Record<string, unknown> | null;
  /** Seconds that grading took. */
  seconds: number;
  /** float32 [response]: a teacher's log-probs (nats) of the sample's tokens, if graded with one. */
  teacher_log_probs: Array | null;
}

/** Appended as `reward.assigned` is, if there is no usable reward. The sample's group cannot be trained on. */
export interface RewardFailed {
  type: "reward.failed";
  /** Id of the sample. */
  sample: string;
  /** Group of the sample. */
  group: string;
  /** Kind of failure. */
  kind: RewardFailureKind;
  /** Explanation, one sentence. */
  message: string;
  /** Name or path of the grader. */
  grader: string;
  /** sha256 (hex) of the grader's source. */
  grader_digest: string;
  /** Seconds that grading took. */
  seconds: number;
}

/** Why there is no reward. `invalid`: the sample lacks a field that its grader needs, or names an unknown grader. */
export type RewardFailureKind = "invalid" | "no_key" | "none" | "not_a_number" | "out_of_memory" | "raised" | "timeout" | "worker_died" | "wrong_type";

/** Rewards of training samples. The bars of a report's two histograms have the same ends. */
export interface RewardHistogram {
  /** number of rewards */
  count: number;
  /** mean reward; None if there are none */
  mean: number | null;
  /** standard deviation, unbiased; None for fewer than two */
  std: number | null;
  /** bars of the histogram: (from, to, count), both ends included */
  bars: ([number, number, number])[];
}

/** Appended by the engine when a rollout cannot be made, or by the gateway when a session gave no sample. */
export interface RolloutFailed {
  type: "rollout.failed";
  /** Id of the sample. */
  sample: string;
  /** Group of the sample. */
  group: string;
  /** Attempt of the sample. */
  attempt: number;
  /** Kind of failure. */
  kind: FailureKind;
  /** Explanation, one sentence. */
  message: string;
  /** Worker id of the engine or gateway. */
  engine: string;
}

/** A rollout. */
export interface RolloutPage {
  /** the sample; its `tokens` are empty here, see the route `tokens` */
  sample: SampleView;
  /** ids of the group's samples that have a row, in order */
  siblings: string[];
  /** command and query for it */
  source: AnswerSource;
}

/** Appended by the engine when a rollout is suspended. Its next attempt continues from its chunks. */
export interface RolloutSuspended {
  type: "rollout.suspended";
  /** Id of the sample. */
  sample: string;
  /** Attempt of the sample. */
  attempt: number;
  /** Response tokens in the log. */
  length: number;
  /** `step_boundary`: a `batch.sealed` that suspends followed the request. */
  reason: SuspendReason;
  /** Worker id of the engine. */
  engine: string;
}

/** Times of a rollout. */
export interface RolloutTimes {
  /** id of the sample */
  sample: string;
  /** UTC of its first request [ns]; None if the log has none */
  requested_at: number | null;
  /** UTC at which its engine began [ns]: the end of its one attempt, less the seconds of generation; None if the log does not have them, or it had several attempts */
  begun_at: number | null;
  /** number of turns in the log, also those of other samples of the rollout */
  turns: number;
  /** the turns give exactly its tokens, so `chunks` have their times */
  by_turn: boolean;
  /** chunks with tokens, in order, without a gap */
  chunks: Chunk[];
}

/** Why an agent's turn extends no other turn of its session. `first`: it is the session's first. `repeat`: it repeats the request of a root. `compaction`, `rewrite`: its messages were shortened or changed. `subagent`: it belongs to another conversation, with other tools, template arguments or system message. `drift`: the model's template gave other tokens than the recorded ones. */
export type RootReason = "compaction" | "drift" | "first" | "repeat" | "rewrite" | "subagent";

/** The state of a run's log and tables. */
export interface RunChange {
  /** name of the run */
  run: string;
  /** last position of the log that the tables include; 0 until they are computed */
  position: number;
  /** last position of the log */
  end: number;
  /** whether its launcher is running */
  on: boolean;
}

/** A decision of the run, or an outcome of one. */
export interface RunDecision {
  /** position of its event */
  position: number;
  /** UTC [ns] */
  at: number;
  /** type of its event */
  type: string;
  /** its subject: a group, step, data set, or the run */
  about: string;
  /** reason or detail, in words */
  reason: string;
  /** figures of the decision by name */
  figures: Record<string, number>;
}

/** The served runs. */
export interface RunList {
  /** folder of the runs, or the one run that is served */
  where: string;
  /** the runs, the run with the newest event first */
  runs: ListedRun[];
  /** command that lists them */
  command: string;
}

/** Status of a run. UNENDED: an archive without the run's end, which cannot show whether the run is running. */
export type RunStatus = "failed" | "finished" | "interrupted" | "killed" | "running" | "unended";

/** A page of samples. */
export interface SamplePage {
  /** an array per column [rows]; `prompt` and `text` are shortened */
  columns: Record<string, (string | number | boolean | null)[]>;
  /** cursor of the next page; None on the last one */
  next: string | null;
  /** query for the page */
  source: AnswerSource;
}

/** Stage of a sample. */
export type SamplePhase = "completed" | "failed" | "graded" | "requested" | "running" | "suspended" | "ungraded";

/** A sample's part in the loss. */
export interface SampleShare {
  /** response tokens that are trained on; None: the log has no such rollout */
  trained: number | null;
  /** index of its optimizer step, from 0; None: left over, or unknown */
  optimizer_step: number | null;
  /** its part of the weights of its optimizer step's loss; None: unknown */
  share: number | null;
  /** its advantage; None if it is not trained on, or unknown */
  advantage: Advantage | null;
}

/** Everything that the log holds about one sample. Fields of the completed rollout are None until its end. */
export interface SampleView {
  /** id of the sample */
  sample: string;
  /** id of its group */
  group: string;
  /** requests of its rollout, one per attempt */
  requests: Request[];
  /** failures and suspensions of its rollout */
  interruptions: (RolloutFailed | RolloutSuspended)[];
  /** number of chunks before the end */
  chunks: number;
  /** turns that have ended */
  turns: Turn[];
  /** agents' sessions that made it */
  sessions: AgentSession[];
  /** text of its prompt after the chat template; empty if unknown */
  prompt: string;
  /** its prompt differs from the group's */
  prompt_is_own: boolean;
  /** label of the prompt: a text or another JSON value */
  label: string | unknown | null;
  /** file URL of the prompt, or `inbox`; empty if unknown */
  source: string;
  /** text of the response; empty until the end */
  text: string;
  /** why the rollout ended */
  stop: StopReason | null;
  /** response length so far [tokens] */
  length: number;
  /** first token, token after the last, and their weight version */
  spans: ([number, number, number])[];
  /** `spans` as text, such as `v3` or `v3[0:40] v4[40:52]` */
  versions: string;
  /** sha256 (hex) of all response tokens and log-probs */
  digest: string | null;
  /** worker that ended the rollout */
  engine: string | null;
  /** durations within the rollout */
  timings: Timings | null;
  /** recorded rollout that the sample reuses */
  origin: Origin | null;
  /** user's functions that made it: sha256 (hex) of the source by `module:name` */
  functions: Record<string, string> | null;
  /** UTC of the end [ns] */
  completed_at: number | null;
  /** its reward, or why it has none; None until then */
  reward: RewardAssigned | RewardFailed | null;
  /** decision about its group; None if there is none yet */
  decision: Decision | null;
  /** step whose batch has its group */
  step: number | null;
  /** weight version that the step made; None until the commit */
  version: number | null;
  /** in a batch, but --rollout-sample-filter-path removed it from training */
  removed: boolean;
  /** its response so far [length] */
  tokens: Token[];
}

/** Sampling parameters of a rollout. Token limits count the whole response, including resumed parts. */
export interface Sampling {
  /** Most tokens in the response. */
  max_new_tokens: number;
  /** Sampling temperature; 0 is greedy. */
  temperature: number;
  /** Nucleus probability. */
  top_p: number;
  /** Number of candidates; -1 is off. */
  top_k: number;
  /** Stop strings. */
  stop: string[];
  /** Stop token ids. */
  stop_token_ids: number[];
  /** Omit special tokens from the text. */
  skip_special_tokens: boolean;
  /** Other sampling parameters of SGLang, by name. */
  more: Record<string, unknown>;
  /** Fewest tokens in the response. */
  min_new_tokens: number;
}

/** Why a session ended: its harness sent a reward or an exit code, a limit passed (`time`, `idle`), or its group was decided without it (`over`). */
export type SealReason = "exit" | "idle" | "over" | "reward" | "time";

/** A batch whose step is not committed. */
export interface SealedBatch {
  /** number of the step, from 0 */
  step: number;
  /** ids of its groups */
  groups: string[];
  /** digest of the batch */
  digest: string;
}

/** Meaning of a finding. */
export type Severity = "alarm" | "warning";

/** Origin of a prompt. The source's cursor is the fold of these events. */
export interface Source {
  /** File URL, or `inbox`. */
  path: string;
  /** Usable row of the file, from 0. */
  row: number;
  /** Pass over the file, from 0. */
  epoch: number;
  /** Prompts drawn from this source before this one, over all epochs. */
  offset: number;
  /** Inbox: the sender's idempotency key. Prompt drawn again from an archive: its group in that archive. */
  key: string;
  /** Line of the file, from 1. */
  line: number;
  /** Log position up to which a sampler had read the log when it drew the prompt; 0 without a sampler. */
  seen: number;
  /** Producer on whose behalf a gateway submitted the prompt. */
  sender: string;
  /** sha256 (hex) of the content that a producer sent under the key. */
  content: string;
}

/** Versions by which the open groups are behind. */
export interface Staleness {
  /** limit [versions]; None if unknown */
  bound: number | null;
  /** number of open groups by `OpenGroup.behind`, ascending */
  behind: Record<string, number>;
}

/** Appended by the trainer, once per sealed batch, in one atomic append with `weights.published`. */
export interface StepCommitted {
  type: "step.committed";
  /** Training step s, from 0. */
  step: number;
  /** Digest of the `batch.sealed`. */
  batch_digest: string;
  /** Weight version before the step: s. */
  parent_version: number;
  /** Weight version after the step: s + 1. */
  version: number;
  /** sha256 (hex) of the weights after the step. */
  weights_digest: string;
  /** sha256 (hex) of the optimizer's state after the step; empty unless `--optimizer-digest` computes it. */
  optimizer_digest: string;
  /** Samples in the batch. */
  samples: number;
  /** Tokens of their prompts and responses. */
  tokens: number;
  /** Losses, norms and log-prob differences by name. */
  metrics: Record<string, number>;
  /** Seconds by part of the step. */
  seconds: Record<string, number>;
  /** User's functions that took part: sha256 (hex) of the source by the setting that names the function. */
  functions: Record<string, string>;
  /** Models other than the policy that computed log-probs (`reference`, `teacher`): digest of their weights (`storage/digests.py`) by name. */
  models: Record<string, string>;
  /** sha256 (hex) of the critic's weights and optimizer state after the step; empty without a critic, and unless `--optimizer-digest` computes it. */
  critic_digest: string;
  /** Whether the version's files were complete before. If not, `weights.stored` follows when they are. */
  stored: boolean;
}

/** A step that both runs have. */
export interface StepComparison {
  /** number of the step, from 0 */
  step: number;
  /** number of differences by kind; without kinds that are equal */
  differences: Record<string, number>;
  /** batch of run A */
  a: BatchFigures;
  /** batch of run B */
  b: BatchFigures;
}

/** The steps of a run. */
export interface StepList {
  /** an array per column [steps] */
  columns: Record<string, (string | number | boolean | null)[]>;
  /** query for them */
  source: AnswerSource;
}

/** The part of each sample in a step's loss, by the settings in force at the end of the log. */
export interface StepLoss {
  /** unit that the loss averages */
  normalisation: Normalisation;
  /** number of optimizer steps; 0 if the batch fills none, or it is unknown */
  optimizer_steps: number;
  /** settings that weigh tokens by figures that the log does not have */
  reweighed_by: string[];
  /** samples in training order */
  samples: SampleShare[];
  /** settings that pack micro batches; the log does not have those */
  packing: Record<string, boolean | number | null>;
}

/** A step. */
export interface StepPage {
  /** the step */
  step: StepView;
  /** how much each sample counts in its loss, and the settings of packing */
  loss: StepLoss;
  /** command and query for it */
  source: AnswerSource;
}

/** A training step. */
export interface StepView {
  /** number of the step, from 0 */
  step: number;
  /** UTC of the batch [ns] */
  sealed_at: number;
  /** digest of the batch */
  batch_digest: string;
  /** oldest weight version that generated a token of the batch */
  oldest_version: number;
  /** groups of the batch */
  groups: BatchGroup[];
  /** samples in training order */
  samples: BatchSample[];
  /** commands of the client that drives the run */
  commands: string[];
  /** the result of training; None until the commit */
  committed: StepCommitted | null;
  /** UTC of the commit [ns] */
  committed_at: number | null;
  /** weight version that the step made; None until the commit */
  version: number | null;
}

/** Why a rollout ended. */
export type StopReason = "abort" | "length" | "stop";

/** Why a rollout is suspended. */
export type SuspendReason = "shutdown" | "stale" | "step_boundary";

/** The head of a timeline's frame. Times are seconds since the origin. */
export interface TimelineHead {
  /** UTC of the first start [us] */
  origin: number;
  /** end of the last interval [s] */
  length: number;
  /** begin of the window [s] */
  begin: number;
  /** end of the window [s] */
  end: number;
  /** number of cells of a lane */
  parts: number;
  /** kinds of work */
  works: string[];
  /** lanes, from the top */
  lanes: LaneHead[];
  /** sample of each bar; empty if it has none */
  samples: string[];
  /** group of each bar; empty if it has none */
  groups: string[];
  /** the longest idle times of engines, graders and trainer */
  idle: Idle[];
  /** arrays after the head, in order: name to type and length */
  arrays: Record<string, [string, number]>;
  /** query for the intervals of the window */
  source: AnswerSource;
}

/** Durations within a rollout. */
export interface Timings {
  /** Seconds from the request until an engine took it. */
  queued: number;
  /** Seconds of generation. */
  generating: number;
  /** Seconds paused by weight updates. */
  updating: number;
}

/** A token of the response. */
export interface Token {
  /** token id */
  token: number;
  /** its text; None without a tokenizer */
  text: string | null;
  /** log-prob (nats) at its generation; 0 if no engine generated it */
  log_prob: number;
  /** weight version that generated it; None if no engine did */
  version: number | null;
  /** it is trained on */
  trained: boolean;
}

/** The head of a token frame. */
export interface TokenHead {
  /** id of the sample */
  sample: string;
  /** number of response tokens */
  n: number;
  /** text of each token [n]; None without a tokenizer */
  texts: (string | null)[];
  /** why the tokens have no text; None if they have */
  no_texts: string | null;
  /** its advantage; None if it is not trained on, or unknown */
  advantage: Advantage | null;
  /** mean absolute difference of the trainer's and the engine's log-probs over its step [nats]: the step's metric `train_rollout_logprob_abs_diff`, None without it. The log has no trainer's log-probs by token */
  step_gap: number | null;
  /** arrays after the head, in order: name to type, each with n elements */
  arrays: Record<string, string>;
}

/** A call of a tool. */
export interface ToolCall {
  /** Name of the tool. */
  name: string;
  /** JSON values by parameter. */
  arguments: Record<string, unknown>;
  /** Calling the tool twice does no harm. */
  may_repeat: boolean;
}

/** The versions that some samples touched. */
export interface Touched {
  /** subject of the question */
  title: string;
  /** number of its samples */
  samples: number;
  /** number of them in a batch */
  trained: number;
  /** versions that were trained on them, the oldest first */
  versions: TouchedVersion[];
  /** versions that derive from these, by the run that made them */
  derived: VersionRange[];
  /** the first of the samples; those that were trained on first */
  listed: TouchedSample[];
  /** query that selects the samples, for `retrain --drop` */
  drop: string;
  /** commands that train again without them, one per run whose log has them; none if no step trained on them */
  commands: string[];
  /** remarks, one sentence each */
  notes: string[];
  /** query that gives the samples with their versions */
  sql: string;
}

/** Versions that a sample, a group, a prompt source or a grader's version touched. */
export interface TouchedPage {
  /** the versions, the samples, and how to leave them out */
  touched: Touched;
  /** command and query for it */
  source: AnswerSource;
}

/** One of the samples. */
export interface TouchedSample {
  /** id of the sample */
  sample: string;
  /** id of its group */
  group: string;
  /** run whose log has it */
  run: string;
  /** reward as graded; None if it has none */
  reward: number | null;
  /** reward that is trained on; None if it is in no batch */
  normalised: number | null;
  /** step that trained on it; None if none did */
  step: number | null;
}

/** A version that was trained on some of the samples. */
export interface TouchedVersion {
  /** number of the version; None if the step is not committed */
  version: number | null;
  /** step that trained on them */
  step: number;
  /** number of them in its batch */
  samples: number;
  /** number of their groups in its batch */
  groups: number;
}

/** A prompt that a version was trained on. */
export interface TrainedPrompt {
  /** id of the group */
  group: string;
  /** run whose log has the prompt */
  run: string;
  /** where it comes from: `train.jsonl:178`, `inbox:KEY of SENDER` */
  line: string;
  /** the same for a question about this source */
  subject: string;
  /** its samples in the batch */
  rollouts: TrainedRollout[];
}

/** A rollout that a version was trained on. */
export interface TrainedRollout {
  /** id of the sample */
  sample: string;
  /** reward as graded; None if it is not in the log */
  reward: number | null;
  /** advantage of its first trained token; None if unknown */
  advantage: number | null;
  /** weight versions of its tokens, such as `v3` or `v3[0:40] v4[40:52]` */
  made_by: string;
}

/** Appended by a trainer that takes over, once, in one append with its claim, when it has reached the last commit. If the optimizer is approximate, the next version still starts from exactly these weights, but training the steps again from an earlier checkpoint does not reproduce it. */
export interface TrainerRestored {
  type: "trainer.restored";
  /** Newest committed weight version, from which training continues. */
  version: number;
  /** Worker id of the trainer. */
  trainer: string;
  /** Weight version of the checkpoint that the trainer loaded. */
  checkpoint: number;
  /** Approximate if the state of the optimizer, or of a critic, differs from the committed state. */
  optimizer: Fidelity;
  /** Always exact: if retraining gave different weights, they are loaded from their files. */
  weights: Fidelity;
  /** Steps since the checkpoint that were trained again from the log. */
  retrained: number;
  /** Retrained steps whose weights or optimizer state differed from the committed state. */
  differing: number;
  /** Steps since the checkpoint that were not trained again because they exceed --max-retrained-steps. The newest weights are loaded from their files; the optimizer's moments lack these steps. */
  skipped: number;
  /** Largest distance of retrained from committed weights; None if none differed or none could be compared. */
  distance: WeightsDistance | null;
  /** sha256 (hex) of the optimizer state that training continues with; empty if none was committed. */
  optimizer_digest: string;
  /** Seconds that loading and retraining took. */
  seconds: number;
  /** sha256 (hex) of the critic state that training continues with; empty if none was committed. */
  critic_digest: string;
}

/** Another filter on a group. */
export interface TriedFilter {
  /** the decision that it would have given */
  trial: FilterTrial;
  /** command that tries it on all groups, for a shell; None for `none`, which no command tries */
  command: string | null;
}

/** A turn that has ended. Only an agent's turn has the fields from `dialect` on. */
export interface Turn {
  /** index of the turn */
  turn: number;
  /** author of the turn */
  role: TurnRole;
  /** duration [s] */
  seconds: number;
  /** number of generated tokens */
  tokens: number;
  /** text of the generated tokens */
  text: string;
  /** tool call, if the role is `tool` */
  call: ToolCall | null;
  /** JSON value that the tool returned */
  result: unknown;
  /** error that the tool raised; empty if none */
  error: string;
  /** turn that it continues; None: a root */
  extends: number | null;
  /** API of the agent's request */
  dialect?: string;
  /** why it continues no turn; None if it continues one */
  root?: RootReason | null;
  /** for a root: the turn with which it shares most tokens */
  nearest?: number | null;
  /** for a root: index of the first token that differs from that turn's path */
  drift?: number | null;
  /** rule that made the new token ids of its prompt */
  rule?: string;
  /** sample under which its generation was requested */
  generation?: string;
}

/** Author of a turn. */
export type TurnRole = "assistant" | "tool";

/** Weight versions, and what may be asked about: files of prompts, and graders by the digest of their source. */
export interface VersionList {
  /** versions that the run made, an array per column, the newest first */
  columns: Record<string, (string | number | boolean | null)[]>;
  /** sources of its training prompts, an array per column */
  sources: Record<string, (string | number | boolean | null)[]>;
  /** versions of its graders, an array per column */
  graders: Record<string, (string | number | boolean | null)[]>;
  /** query for the versions */
  source: AnswerSource;
  /** query for the sources */
  sources_source: AnswerSource;
  /** query for the graders */
  graders_source: AnswerSource;
}

/** A weight version. */
export interface VersionPage {
  /** number of the version */
  version: number;
  /** newest version of the run */
  newest: number;
  /** run that made it */
  made_by: string;
  /** digest of all tensors */
  digest: string | null;
  /** version from which a trainer resumed with an approximate optimizer */
  approximate_since: number | null;
  /** its origin and use; None if only the log of another run has it */
  view: VersionView | null;
  /** step that made it; None for the version that the ancestry begins with */
  step: number | null;
  /** mean reward of the step's batch, as graded */
  reward_mean: number | null;
  /** prompts of the step's batch, with their samples */
  prompts: TrainedPrompt[];
  /** versions that it derives from, by the run that made them */
  ancestors: VersionRange[];
  /** versions that derive from it */
  descendants: VersionRange[];
  /** runs that branched off from the run */
  branches: JoinedRun[];
  /** remarks, one sentence each */
  notes: string[];
  /** command and query for it */
  source: AnswerSource;
}

/** Weight versions that one run made, both ends included. */
export interface VersionRange {
  /** name of the run */
  run: string;
  /** first version */
  first: number;
  /** last version */
  last: number;
}

/** A weight version. */
export interface VersionView {
  /** number of the version; 0 is what the run starts from */
  version: number;
  /** its publication */
  published: WeightsPublished | null;
  /** UTC of its publication [ns] */
  published_at: number | null;
  /** its files, if they were complete after its commit */
  stored: WeightsStored | null;
  /** whether its files are complete */
  is_stored: boolean;
  /** step that made it; None for the version that a run starts from */
  step: number | null;
  /** point of the parent run, if a branch starts from this version */
  branched: Branched | null;
  /** its loads, one per engine */
  activations: WeightsActivated[];
  /** its evaluations */
  evals: EvalCompleted[];
  /** the checkpoint with these weights */
  checkpoint: CheckpointSaved | null;
  /** trainers that took over and resumed from it */
  restored: TrainerRestored[];
}

/** Response tokens [start, end) that one weight version generated. */
export type WeightSpan = [number, number, number];

/** Appended by an engine that runs the version and has checked its digest. */
export interface WeightsActivated {
  type: "weights.activated";
  /** Weight version. */
  version: number;
  /** Worker id of the engine. */
  engine: string;
  /** Digest of all tensors (`storage/digests.py`). */
  digest: string;
  /** Seconds from retracting the running generations to continuing them. */
  seconds: number;
  /** Seconds from publication to activation; 0 if the engine returns to the version. */
  lag: number;
  /** Generations that were running and continued. */
  resumed: number;
  /** How often the engine ran the version before; it returns to a version to finish an evaluation of it. */
  returns: number;
  /** Appends that the engine's process repeated since its last activation, because the server had too many open batches. */
  refused_batches: number;
  /** How the engine took the version. */
  carrier: WeightsCarrier;
}

/** Source of the bytes of a version on an engine's host. */
export type WeightsCarrier = "collective" | "files" | "shared_memory";

/** Distance of weights from the committed weights, over all tensors. */
export interface WeightsDistance {
  /** Largest absolute difference of one number. */
  max_abs: number;
  /** L2 norm of the difference over that of the committed weights; no unit. */
  relative_l2: number;
}

/** All tensors, or the changes since an earlier version, in slime's format. */
export type WeightsKind = "delta" | "full";

/** Appended by the trainer when engines can take a version: from now on, or once its files are complete. The files are complete before, unless `step.committed` of the version says otherwise (`stored`). */
export interface WeightsPublished {
  type: "weights.published";
  /** Weight version, from 0. */
  version: number;
  /** Version from which it was trained; None for version 0. */
  parent: number | null;
  /** Folder of HF-named safetensors and their manifest. */
  url: string;
  /** Digest of all tensors (`storage/digests.py`). */
  digest: string;
  /** Size of the tensors that the files have, in bytes; of a delta: of its compressed changes. Of a version that is not stored yet: of all its tensors. */
  bytes: number;
  /** Whether the files have all tensors, or the changes since an earlier version. */
  kind: WeightsKind;
  /** User's functions that saw the files before: sha256 (hex) of the source by the setting that names it. */
  functions: Record<string, string>;
  /** How engines can take the version, as long as the trainer offers it, besides its files. */
  carrier: WeightsCarrier;
}

/** Appended by a trainer when the files of a version are complete and durable, if its step was committed before. */
export interface WeightsStored {
  type: "weights.stored";
  /** Weight version. */
  version: number;
  /** Digest of all tensors, as in `step.committed`. */
  digest: string;
  /** Folder of HF-named safetensors and their manifest. */
  url: string;
  /** Size of the tensors that the files have, in bytes; of a delta: of its compressed changes. */
  bytes: number;
  /** Whether the files have all tensors, or the changes since an earlier version. */
  kind: WeightsKind;
  /** Seconds that writing the files took; 0 if an earlier trainer wrote them. */
  seconds: number;
}

/** The requests behind a rollout. */
export interface WirePage {
  /** id of the requested sample */
  sample: string;
  /** the requests, in the order of the log */
  requests: WireRequest[];
}

/** A request. */
export interface WireRequest {
  /** position of the event that holds it */
  position: number;
  /** UTC of the event [ns]; an agent's turn is recorded when it has ended */
  at: number;
  /** type of the event */
  type: string;
  /** worker that appended it */
  producer: string;
  /** turn of an agent that it asked for; None for other requests */
  turn: number | null;
  /** attempt of the rollout; None for other requests */
  attempt: number | null;
  /** API of an agent's request; empty for other requests */
  dialect: string;
  /** User-Agent of an agent; empty for other requests */
  client: string;
}

/** One request as it was sent. */
export interface WireText {
  /** body of an agent's request, with bytes outside UTF-8 as \xNN; or the event as JSON, in full */
  text: string;
  /** length of the whole [characters]; `text` may be its beginning */
  length: number;
}
