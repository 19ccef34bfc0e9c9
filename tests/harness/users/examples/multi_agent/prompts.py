"""The prompts of the agents."""

SOLVER = "Solve: {problem}"


def rewriter(count: int) -> str:
    solutions = "".join(f"\nSolution {number}: {{solution{number}}}" for number in range(1, count + 1))
    return "Improve: {problem}" + solutions


def selector(count: int) -> str:
    return rewriter(count).replace("Improve", "Select") + "\nJudgment: <number>"
