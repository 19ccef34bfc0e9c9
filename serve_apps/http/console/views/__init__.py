"""The console's views: a file each, in the order of the menu."""

from serve_apps.http.console.view import ConsoleView
from serve_apps.http.console.views import (
    compare,
    group,
    lineage,
    metrics,
    moment,
    now,
    query,
    rescore,
    rollout,
    runs,
    samples,
    step,
    timeline,
)

VIEWS: tuple[ConsoleView, ...] = (
    runs.VIEW,
    now.VIEW,
    timeline.VIEW,
    metrics.VIEW,
    samples.VIEW,
    group.VIEW,
    rollout.VIEW,
    step.VIEW,
    lineage.VIEW,
    moment.VIEW,
    query.VIEW,
    compare.VIEW,
    rescore.VIEW,
)
