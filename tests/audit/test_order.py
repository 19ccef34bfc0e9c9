"""In prompt order a rejection may come before acceptances that wait for their batch."""

from __future__ import annotations

from schemas.groups import GroupAccepted, GroupRejected
from slime_events.app.cli.render.audit_text import report_text
from tests.audit.clean import CleanLogs
from tests.audit.test_clean import counts


async def test_a_group_that_fails_may_be_rejected_before_those_that_wait_for_their_batch(clean: CleanLogs) -> None:
    failing = clean["failing"]
    report = await failing.doctored().audit(failing.auditor())
    assert report.clean, report_text(report, 0)
    events = [recorded.envelope.event for recorded in failing.records]
    verdicts = [event for event in events if isinstance(event, GroupAccepted | GroupRejected)]
    assert isinstance(verdicts[0], GroupRejected)
    assert verdicts[0].group > verdicts[1].group
    assert counts(report, "verdicts") == {"accepted": 8, "rejected (reward_failed)": 1}
