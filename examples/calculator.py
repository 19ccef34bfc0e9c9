"""Two turns with a calculator: the model answers, gets the calculator's result, and answers again."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculate(expression):
    """Evaluate an expression. A tool is a plain function, called in a thread, or an `async def`."""

    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return node.value

    return value(ast.parse(expression, mode="eval").body)


async def generate(args, sample, sampling_params, *, session):
    question = sample.prompt.split("user\n")[1].split("<")[0]
    sample.tokens = session.tokenize(sample.prompt)
    for left in reversed(range(args.max_turns)):
        turn = await session.generate(sample.tokens)
        turn.add_to(sample)
        if not left or turn.stop == "length":
            break
        result = await session.call(calculate, {"expression": question}, may_repeat=True)
        reply = f"\n<|im_start|>user\n{result}<|im_end|>\n<|im_start|>assistant\n"
        sample.append_response_tokens(tokens=session.tokenize(reply), text=reply, trainable=False)
    sample.metadata["turns"] = args.max_turns - left
    return sample


def reward_func(args, sample):
    """Grade the last answer: `sample.answer` is the text after the last `</think>`, without the end token."""
    return float(sample.answer == str(sample.label))
