"""`docs/settings.md` made again: `python -m slime_events.app.settings_page docs/settings.md`."""

import sys
from pathlib import Path

from slime_events.algorithms.train_arguments import registered
from slime_events.core.config.document import document

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(registered()), encoding="utf-8")
