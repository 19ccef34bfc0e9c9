"""The program of each process of a soak in `test_expert_checkpoints`: further layouts of two ranks."""

from __future__ import annotations

from tests.megatron.expert_checkpoints import MORE, run_all


def main() -> None:
    """Run the further cases of two ranks."""
    run_all(MORE, 2)


if __name__ == "__main__":
    main()
