"""`python -m tests.lineage.pictures`: renews the pictures."""

from slime_events.analysis.lineage.picture import svg
from tests.lineage.pictures import ANSWERS, FILES

if __name__ == "__main__":
    for name, answer in ANSWERS.items():
        (FILES / f"{name}.svg").write_text(svg(answer), encoding="utf-8")
