"""A process that takes events of a queue and works on them until it is killed: URL RUN LEASE_S COUNT.

It prints the positions that it holds, in a line, once it has them all.
"""

import asyncio
import sys

from schemas.subjects import every_event
from storage.jetstream.log import JetStreamLog
from storage.log import Delivery


async def main(url: str, run: str, lease_s: float, count: int) -> None:
    log = await JetStreamLog.open(url, run, create=False)
    consumer = await log.consume("q", every_event(run), lease_s=lease_s)
    held: list[Delivery] = []
    while len(held) < count:
        held += await consumer.take(count - len(held), 1.0)
    sys.stdout.write(" ".join(str(delivery.recorded.position) for delivery in held) + "\n")
    sys.stdout.flush()
    while True:
        await asyncio.sleep(lease_s / 3)
        await asyncio.gather(*(delivery.working() for delivery in held))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
