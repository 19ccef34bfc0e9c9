"""The program of each process of a soak in `test_parallel`: weights that wait in the host's memory."""

from __future__ import annotations

from tests.megatron.ranks import MORE, run_all


def main() -> None:
    """Run `MORE`."""
    run_all(MORE)


if __name__ == "__main__":
    main()
