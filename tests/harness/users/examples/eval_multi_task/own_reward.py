"""A grader for one of the sets."""


def shouted(args, sample) -> float:
    return float(sample.response.isupper() and sample.response_length <= 5)
