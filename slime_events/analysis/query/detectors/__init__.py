"""Detectors of reward hacking and of failures of a run, each an SQL view: `FROM equal_rewards()`.

`DETECTORS` lists all, `ALARMS` those for a run that is on.
"""

from slime_events.analysis.query.detectors.answers import REPETITION, SAME_IN_GROUP, TEXT_AFTER_ANSWER
from slime_events.analysis.query.detectors.detector import Detector, Severity
from slime_events.analysis.query.detectors.graders import REWARD_LOST, SIGN_FLIPS
from slime_events.analysis.query.detectors.lengths import LENGTH_EXPLOSION, LENGTH_PAYS
from slime_events.analysis.query.detectors.log_probs import LOG_PROB_GAP
from slime_events.analysis.query.detectors.phrases import ONE_TRICK, PHRASES_ROSE, SAME_ANSWER
from slime_events.analysis.query.detectors.rewards import (
    CONSTANT_GRADER,
    EQUAL_REWARDS,
    FAILING_GRADER,
    REWARD_COLLAPSE,
)
from slime_events.analysis.query.detectors.waits import IDLE_TRAINER

DETECTORS: tuple[Detector, ...] = (
    *(EQUAL_REWARDS, CONSTANT_GRADER, REWARD_COLLAPSE, LENGTH_EXPLOSION, FAILING_GRADER, LOG_PROB_GAP),
    IDLE_TRAINER,
    *(LENGTH_PAYS, PHRASES_ROSE, ONE_TRICK, SAME_ANSWER, SAME_IN_GROUP, REPETITION, TEXT_AFTER_ANSWER),
    *(SIGN_FLIPS, REWARD_LOST),
)
"""All detectors, alarms first, then those that need a second grader last."""
ALARMS: tuple[Detector, ...] = tuple(detector for detector in DETECTORS if detector.severity is Severity.ALARM)
"""Detectors that may raise an alarm while the run is on."""
