"""`slime-events nats-config`: accounts and permissions for a NATS server of the user's own."""

import argparse
from pathlib import Path

from schemas.errors import InvalidValue
from schemas.subjects import check_token
from storage.nats.accounts import EVERY_RUN, Access, accounts_of, accounts_text, guard, note_url, write_private

PLACEHOLDERS = {access: f"$SLIME_{access.name}_PASSWORD" for access in Access}
FILE = "accounts.conf"
_HEAD = """\
# For the configuration of a NATS server, 2.12 or newer, with JetStream. A server has one block `accounts`: put accounts
# of others beside these. Nothing else should use these.
"""
_SET = f"""\
# Set {", ".join(name[1:] for name in PLACEHOLDERS.values())} in the server's environment,
# or write a password, or its bcrypt hash in quotes, in the place of each.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the block with placeholders; with --out make passwords, and files that hold them."""
    name = arguments.name if arguments.name == EVERY_RUN else check_token(arguments.name, "run name")
    if arguments.out is None:
        print(_HEAD + _SET + accounts_text(name, PLACEHOLDERS, agents=arguments.agents))
        return 0
    if any(arguments.out.glob("*")):
        raise InvalidValue(f"--out {arguments.out} is not empty: name a new folder, so that no password is replaced")
    _write(arguments.out, name, arguments.nats_url or "", agents=arguments.agents)
    print(f"{arguments.out / FILE}: write `include {FILE}` into the server's configuration, and keep it beside that")
    users = ("train, resume and restore", "producers", "gateway", "those who look")
    for access, whose in zip(Access, users, strict=True):
        print(f"{arguments.out / access}.json: --nats-creds of {whose}")
    return 0


def _write(folder: Path, name: str, url: str, *, agents: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    guard(folder, name, agents=agents)
    note_url(folder, url)
    write_private(folder / FILE, _HEAD + accounts_of(folder) + "\n")
